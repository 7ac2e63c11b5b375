"""vlmsafe clone."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from vlmsafe.cli.terminal import err, out, parse
from vlmsafe.config.methods import CLONE
from vlmsafe.numerics.normaliser import STD_FLOOR


@dataclass(frozen=True)
class CloneCommand:
    """Make a run whose policy imitates the scripted driver of an environment.

    The driver is recorded on training scenarios, with noise on what is executed, and a policy is fitted to what it
    would do. The run can be evaluated and traced, and `vlmsafe train --init-from` starts from it.
    """

    env: tyro.conf.Positional[str]
    """Environment: a name from `vlmsafe envs`, a variant, or gym:<id> of an environment that has expert()."""
    steps: int = 60_000
    """Environment steps that are recorded, in each round."""
    passes: int = CLONE.learner.update_iters
    """Passes over the recorded steps."""
    rounds: int = 0
    """Further rounds, in which the clone drives and the scripted driver says what it would do."""
    hidden: tuple[int, ...] = CLONE.learner.hidden
    """Units of each hidden layer of the policy."""
    observe_changes: int = 0
    """Steps over which the clone also observes by how much each value has changed; 0 for none."""
    braking_weight: float = 1.0
    """How many times a state counts in which the scripted driver brakes."""
    observation_floor: float = STD_FLOOR
    """The least deviation by which an observation is divided; a larger one keeps rare, large values apart."""
    budget: float | None = None
    """Cost that an episode may have, for evaluations; by default the environment's."""
    seed: int = 0
    """Seed of everything random."""
    processes: int = 2
    """Simulators at a time; the result does not depend on it."""
    run_dir: Path | None = None
    """Directory of the run; by default runs/<env>/clone/seed-<seed>."""
    quiet: bool = False
    """Print nothing while it works."""


def clone_verb(argv: list[str]) -> None:
    command = parse(CloneCommand, argv, "clone")
    from rich.progress import Progress, TaskID

    from vlmsafe.cloning.clone import clone

    stages: dict[str, TaskID] = {}
    with Progress(console=err, transient=True, disable=command.quiet or not err.is_terminal) as progress:

        def on_progress(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = progress.add_task(stage)
            progress.update(stages[stage], completed=done, total=total)

        run = clone(
            command.env, steps=command.steps, passes=command.passes, rounds=command.rounds, hidden=command.hidden,
            observe_changes=command.observe_changes, braking_weight=command.braking_weight,
            observation_floor=command.observation_floor, budget=command.budget,
            seed=command.seed, processes=command.processes, run_dir=command.run_dir, on_progress=on_progress,
        )  # fmt: skip
    error = run.rows("epochs")[-1]["imitation_error"]
    path = shlex.quote(str(run.path))
    out.print(f"finished: {run.path}", markup=False, soft_wrap=True)
    for note in replace(run.config, budget=command.budget).assumptions:
        err.print(f"note: {note}", markup=False, soft_wrap=True)
    out.print(f"its actions, from -1 to 1, differ from the scripted driver's by {error:.3f} (root mean square)")
    out.print(f"evaluate it with: vlmsafe evaluate {path}", markup=False, soft_wrap=True)
