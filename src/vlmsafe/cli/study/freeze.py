"""vlmsafe study freeze: write down what a study decides, before its first run."""

from __future__ import annotations

from dataclasses import dataclass

from vlmsafe.cli.study.run import StudyChoice
from vlmsafe.cli.terminal import out


@dataclass(frozen=True)
class FreezeCommand(StudyChoice):
    """Write a study's protocol into its folder, with its hash and the time. `study run` does so before its first run.

    protocol.md is for people, protocol.json for programs. They hold the question, arms, seeds, steps, evaluations,
    claims and looks. Later changes are added to them, with the number of runs that were finished by then.
    """


def freeze_verb(command: FreezeCommand) -> None:
    from vlmsafe.comparison.preregistration import PROTOCOL_PAGE
    from vlmsafe.studies.api import freeze_study

    study, folder = command.load()
    protocol, events = freeze_study(study, folder, command.store())
    for event in events:
        out.print(str(event), markup=False, soft_wrap=True)
    if not any(event.what in ("frozen", "changed") for event in events):
        out.print(f"unchanged since {protocol.last.time}", markup=False)
    out.print(f"protocol: {folder / PROTOCOL_PAGE}", markup=False, soft_wrap=True)
    out.print(f"hash: {protocol.last.digest}", markup=False, soft_wrap=True)
