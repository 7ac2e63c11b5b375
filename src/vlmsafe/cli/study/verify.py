"""vlmsafe study verify: compute parts of some runs of a study again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from vlmsafe.cli.study.run import StudyChoice
from vlmsafe.cli.terminal import out
from vlmsafe.cli.verify import COLOURS, replay_progress
from vlmsafe.errors import InputError
from vlmsafe.verification.answer import EPOCHS

if TYPE_CHECKING:
    from vlmsafe.studies.verify import VerifiedRun


@dataclass(frozen=True)
class StudyVerifyCommand(StudyChoice):
    """Verify some runs of a study, one line per run. `vlmsafe verify RUN` says more about one run.

    The runs are chosen at random: one of every arm in every environment before a second one of any.

    Exit code 0: all are equal; 3: some could not be verified here; 4: some differ.
    """

    runs: int = 3
    """How many runs to verify."""
    epochs: int = EPOCHS
    """Epochs to replay at each end of a run; 0 only checks that its records fit together."""
    seed: int = 0
    """Seed of the choice; another seed chooses other runs."""
    service: str = ""
    """Address of a scoring service (`vlmsafe serve`) that holds the runs' models; by default they are loaded here."""
    json: bool = False
    """Print JSON, for programs."""


def verify_verb(command: StudyVerifyCommand) -> None:
    from vlmsafe.studies.verify import verify_study

    study, folder = command.load()
    command.update_copy(study, folder)
    if not folder.is_dir():
        raise InputError(f"there is no {folder}; expected the folder of a study that was started")

    def print_run(run: VerifiedRun) -> None:
        if not command.json:
            outcome = "not replayed" if run.verification is None else run.verification.outcome
            head, _, rest = run.summary.partition(":")
            line = Text(f"{run.name}  ").append(head, style=COLOURS[outcome]).append(f":{rest}")
            out.print(line, soft_wrap=True)

    with replay_progress("replaying") as on_steps:
        result = verify_study(
            study, folder, runs=command.runs, epochs=command.epochs, seed=command.seed, service=command.service,
            on_run=print_run, on_steps=on_steps,
        )  # fmt: skip
    if command.json:
        print(json.dumps(result.to_dict(), indent=2, allow_nan=False, ensure_ascii=False))
    else:
        out.print(result.summary, soft_wrap=True)
    raise SystemExit(result.exit_code)
