"""`verify`: is a run what its settings and its seed give?"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vlmsafe import kernels
from vlmsafe.config.methods import CLONE
from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.io.child import call_in_child
from vlmsafe.runs.checkpoint import Checkpoint
from vlmsafe.runs.drivers import open_run
from vlmsafe.runs.layout import is_driver
from vlmsafe.runs.run import BEFORE_CHOICES, Run
from vlmsafe.runs.surroundings import code_and_machine, source_record
from vlmsafe.runs.versions import other_world, recorded_source, user_source
from vlmsafe.verification.answer import EPOCHS, Replay, Surrounding, Verification, epochs_text, listed
from vlmsafe.verification.history import History
from vlmsafe.verification.replay import Replayed, replay

_SCORER = "scorer's "


def verify(
    run: Run | Path | str,
    *,
    epochs: int = EPOCHS,
    service: str = "",
    on_steps: Callable[[int, int], None] = lambda done, total: None,
) -> Verification:
    """Compute parts of a run again and compare them with what the run recorded. The run is not changed.

    The first `epochs` epochs are replayed from the seed, and the last ones from a kept checkpoint: the newest that lies
    at least `epochs` back, else the oldest. Compared are all figures of each epoch and episode, and the digest of the
    state after each epoch. Without a replay it is checked that rows, digests, checkpoints and settings fit together;
    with `epochs=0` nothing else is done. The scorer of the run is loaded here unless `service` is the address of a
    scoring service. `on_steps` is told the environment steps done, and their number in all. The replay uses the run's
    kernels; where this process has others, a child process computes it.

    >>> import vlmsafe
    >>> run = vlmsafe.train(env="speeding", total_steps=400, steps_per_epoch=200, run_dir="runs/first", quiet=True)
    >>> vlmsafe.verify("runs/first", epochs=1).outcome
    'equal'
    """
    if epochs < 0:
        raise InputError(f"epochs is {epochs}; expected 0 or more")
    run = open_run(run)
    if is_driver(run.path):
        raise InputError(
            f"{run.path} is a shipped driver and has no training to replay; its card names the commands that made it"
        )
    if run.config.method == CLONE.name:
        raise InputError(
            f"{run.path} is a clone of a scripted driver and has no training to replay; make it again with vlmsafe "
            "clone and the same settings: equal clones have equal epochs.jsonl"
        )
    if not kernels.fit(run.config.kernels):
        return call_in_child(
            run.config.kernels, verify, run, epochs=epochs, service=service, callbacks={"on_steps": on_steps}
        )
    history = History.of(run)
    recorded = history.differences()
    plan = _plan(history, epochs, history.matching()) if history.in_order else []
    elsewhere = other_world(run) if plan else None
    found, obstacle = _replay_all(history, [] if elsewhere else plan, service, on_steps)
    if elsewhere:
        obstacle = f"no epoch can be replayed here: {elsewhere}"
    differences = [*recorded, *(one.difference for one in found if one.difference is not None)]
    return Verification(
        run=history.run.path,
        title=f"{history.run.config.method} on {history.run.config.env}, seed {history.run.config.seed}",
        epochs=history.last,
        planned=history.run.config.epochs,
        checkpoints=tuple(history.matching()),
        replays=tuple(one.replay for one in found),
        # Of one epoch the difference that names a value comes first.
        differences=tuple(sorted(differences, key=lambda one: (one.epoch, one.in_replay is None))),
        surroundings=tuple(compare_surroundings(history, found)),
        notes=(*history.notes(), *_notes(history, found)),
        obstacle=obstacle,
    )


def _plan(history: History, epochs: int, starts: Mapping[int, Checkpoint]) -> list[tuple[Checkpoint | None, int]]:
    """Where to start replaying, and the last epoch to replay from there."""
    if epochs == 0:
        return []
    last, head = history.last, min(epochs, history.last)
    plan: list[tuple[Checkpoint | None, int]] = [(None, head)]
    usable = [epoch for epoch in sorted(starts) if 0 < epoch < last]
    if head < last and usable:
        # What the replay from the seed covers is not replayed again.
        back = [epoch for epoch in usable if epoch <= max(last - epochs, head)]
        plan.append((starts[back[-1] if back else usable[0]], last))
    return plan


def _replay_all(
    history: History,
    plan: Sequence[tuple[Checkpoint | None, int]],
    service: str,
    on_steps: Callable[[int, int], None],
) -> tuple[list[Replayed], str | None]:
    """Carry out a plan as far as it can be; the second value says why the rest cannot, if so."""
    sizes = [(until - (start.epoch if start else 0)) * history.run.config.steps_per_epoch for start, until in plan]
    found: list[Replayed] = []
    for place, (start, until) in enumerate(plan):
        progress = partial(_add_steps, on_steps, sum(sizes[:place]), sum(sizes))
        with tempfile.TemporaryDirectory(prefix="vlmsafe-verify-") as folder:
            try:
                found.append(replay(history, start, until, Path(folder) / "run", service=service, on_steps=progress))
            except VlmsafeError as error:
                return found, f"{Replay(start.epoch if start else 0, until)} could not be replayed here: {error}"
    return found, None


def _add_steps(on_steps: Callable[[int, int], None], before: int, total: int, done: int) -> None:
    on_steps(before + done, total)


def _notes(history: History, found: Sequence[Replayed]) -> Iterator[str]:
    done = {epoch for one in found for epoch in range(one.replay.start + 1, one.replay.last + 1)}
    gaps = [epoch for epoch in range(1, history.last + 1) if epoch not in done]
    if done and gaps:
        spans = [
            epochs_text((span := [epoch for _, epoch in group])[0], span[-1])
            for _, group in itertools.groupby(enumerate(gaps), key=lambda pair: pair[1] - pair[0])
        ]
        yield f"not replayed: {listed(spans)}; --epochs {history.last} replays every epoch from the seed"
    if absent := sorted({name for one in found for name in one.absent}):
        yield f"not compared, because only one of the two versions records it: {listed(absent)}"


def compare_surroundings(history: History, found: Sequence[Replayed] = ()) -> Iterator[Surrounding]:
    """Versions and machine of the run, also of each time it was resumed, and of this process."""
    begun = [event for event in history.events if event.get("event") in ("started", "resumed")]
    then: dict[str, list[str]] = {}
    for record in (BEFORE_CHOICES | history.run.recorded(), *begun):
        for name, value in _named(record).items():
            values = then.setdefault(name, [])
            if values[-1:] != [value]:
                values.append(value)
    scorer = {"scorer": found[0].scorer} if found else {}
    config = history.run.config
    code = {"env_version": config.spec.version} | source_record(user_source(config))
    now = _named(code_and_machine() | code | scorer)
    for name in {**then, **now}:
        if found or not name.startswith(_SCORER):  # without a replay, no scorer was loaded
            yield Surrounding(name, ", then ".join(then.get(name, ["not recorded"])), now.get(name, "not present"))


def _named(record: Mapping[str, Any]) -> dict[str, str]:
    """Surroundings under the names that people use, as text."""
    packages, scorer = (found if isinstance(found := record.get(name), dict) else {} for name in ("packages", "scorer"))
    values = {
        **packages,
        "revision": record.get("git_revision"),
        "environment version": record.get("env_version"),
        **{f"source of the {part}": one.digest or "not known" for part, one in recorded_source(record).items()},
        **{name: record.get(name) for name in ("kernels", "python", "system", "processor")},
        **{f"{_SCORER}{name}": value for name, value in scorer.items() if name != "name"},
    }
    return {name: str(value) for name, value in values.items() if value is not None}
