"""What a run recorded, read once, and whether its rows, checkpoints and settings fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vlmsafe.errors import InputError, RunError
from vlmsafe.runs.checkpoint import Checkpoint, load_checkpoint, path_of, saved_epochs
from vlmsafe.runs.digest import COLUMN, PROGRESS, RECORDS, REDUCED, record_digest
from vlmsafe.runs.layout import CONFIG, PROMPTS, START, row_file
from vlmsafe.runs.run import Row, Run
from vlmsafe.verification.answer import Mismatch, epochs_text, listed


@dataclass(frozen=True)
class History:
    """The rows and checkpoints of a run. A run that is still training does not change a history that was read."""

    run: Run
    rows: list[Row]
    episodes: dict[int, list[Row]]
    """The rows of episodes by epoch."""
    events: list[Row]
    """Empty if they cannot be read."""
    checkpoints: dict[int, Checkpoint]
    """Those that can be read, by epoch."""
    unreadable: dict[int, str]
    """The reason for each checkpoint that cannot be read, by epoch."""
    damaged_events: str | None = None

    @classmethod
    def of(cls, run: Run) -> History:
        """Read a run; an InputError that names what is missing if there is nothing to verify."""
        checkpoints: dict[int, Checkpoint] = {}
        unreadable: dict[int, str] = {}
        # Checkpoints first: a run that is training only adds rows, so the rows then cover every checkpoint.
        for epoch in saved_epochs(run.checkpoints):
            path = path_of(run.checkpoints, epoch)
            try:
                checkpoints[epoch] = load_checkpoint(path)
            except RunError as error:
                if path.exists():  # if not, the run saved a newer one in the meantime and removed it
                    unreadable[epoch] = str(error)
        expected = ["epochs.jsonl", "episodes.jsonl", *([PROMPTS] if run.config.signal.prompts else [])]
        expected += [START] if run.config.init_from is not None else []
        missing = [name for name in expected if not (run.path / name).is_file()]
        if missing:
            raise InputError(
                f"{run.path} is no complete run: {listed(missing)} missing, so there is nothing to compare with; copy "
                "the whole directory of the run"
            )
        rows = run.rows("epochs")
        if not rows:
            raise InputError(
                f"{run.path} has no finished epoch yet: epochs.jsonl is empty; continue it with: {run.resume_command}"
            )
        for row in rows:
            if not isinstance(row.get(COLUMN, {}), dict):
                raise RunError(
                    f"{run.path / 'epochs.jsonl'} is damaged: expected digests by part in the row of epoch "
                    f"{row['epoch']}, got {row[COLUMN]!r}"
                )
        episodes: dict[int, list[Row]] = {}
        for row in run.rows("episodes"):
            episodes.setdefault(row["epoch"], []).append(row)
        try:
            events, damaged = run.events(), None
        except RunError as error:
            events, damaged = [], str(error)
        return cls(run, rows, episodes, events, checkpoints, unreadable, damaged)

    @property
    def last(self) -> int:
        """The last epoch that has a row."""
        return len(self.rows)

    @property
    def in_order(self) -> bool:
        """Whether there is one row per epoch, from the first to the last."""
        return [row["epoch"] for row in self.rows] == list(range(1, self.last + 1))

    def state_after(self, epoch: int) -> dict[str, str] | None:
        """The digest of the state after an epoch, from its row or else from its checkpoint; None if there is none."""
        if COLUMN in (row := self.rows[epoch - 1]):
            return {part: digest for part, digest in row[COLUMN].items() if part not in RECORDS}
        whole = epoch in self.checkpoints and not reduced(self.checkpoints[epoch])
        return self.checkpoints[epoch].digest() if whole else None

    # -- do the records fit together? --------------------------------------------------------------------------

    def differences(self) -> list[Mismatch]:
        """What does not fit, in the order of epochs."""
        damaged = [] if self.damaged_events is None else [Mismatch(0, "events", self.damaged_events)]
        rows = [*self._rows_in_order(), *self._removed_digests(), *self._changed_rows()]
        return sorted([*damaged, *rows, *self._checkpoints(), *self._end()], key=lambda difference: difference.epoch)

    def matching(self) -> dict[int, Checkpoint]:
        """The whole checkpoints that fit the settings and the rows, by epoch."""
        whole = {epoch: one for epoch, one in self.checkpoints.items() if not reduced(one)}
        return {epoch: one for epoch, one in whole.items() if not [*self._checkpoint(epoch, one)]}

    def notes(self) -> Iterator[str]:
        """What a reader should know about the extent of these records."""
        config = self.run.config
        if self.last < config.epochs:
            yield f"the run is {self.run.status()}, with {self.last} of its {config.epochs} epochs; these were checked"
        if before := self._before_digests:
            yield (
                f"an earlier version wrote {epochs_text(1, before)} without digests; the state after "
                "such an epoch was compared only if its checkpoint is kept"
            )
        if not self.checkpoints:
            yield "no checkpoint is kept, so the last epochs cannot be replayed and the final policy was not checked"
        elif (newest := max(self.checkpoints)) < self.last and not [*self._end()]:
            yield f"no checkpoint covers {epochs_text(newest + 1, self.last)}; resuming the run computes it again"
        for epoch in sorted(epoch for epoch, one in self.checkpoints.items() if reduced(one)):
            yield (
                f"the checkpoint of epoch {epoch} was reduced to what acts, so no epoch can be replayed from it; a "
                f"replay from the seed to epoch {epoch} checks its policy"
            )

    def _rows_in_order(self) -> Iterator[Mismatch]:
        for expected, row in enumerate(self.rows, 1):
            if row["epoch"] != expected:
                yield Mismatch(expected, "rows", f"row {expected} of epochs.jsonl is of epoch {row['epoch']}")
                return
        others = sorted(self.episodes.keys() - range(1, self.last + 1))
        # A process that was killed between two writes leaves episodes whose epoch has no row yet.
        if others and others != [self.last + 1]:
            yield Mismatch(others[0], "episodes", "episodes.jsonl has episodes of this epoch, epochs.jsonl no row")

    @property
    def _before_digests(self) -> int:
        """The number of rows before the first one with a digest. An earlier version may have begun the run."""
        return next((place for place, row in enumerate(self.rows) if COLUMN in row), self.last)

    def _removed_digests(self) -> Iterator[Mismatch]:
        """The first row without a digest after one that has it: no earlier version continues a run of a later one."""
        removed = [row["epoch"] for row in self.rows[self._before_digests :] if COLUMN not in row]
        if removed:
            text = f"the row has no digest, but an earlier row has one{_also(removed)}"
            yield Mismatch(removed[0], "row", text)

    def _changed_rows(self) -> Iterator[Mismatch]:
        """The first row, and the first epoch's episodes, that are not what their digest was taken of."""
        words = {"row": "the row", "episodes": "rows of its episodes", PROGRESS: "the progress in its rows"}
        for part in RECORDS:
            changed = [
                row["epoch"]
                for row in self.rows
                if COLUMN in row and row[COLUMN].get(part) != self._record_digest(row).get(part)
            ]
            if changed:
                text = f"{words[part]} changed after the epoch was recorded: the digest does not match{_also(changed)}"
                yield Mismatch(changed[0], part, text)

    def _record_digest(self, row: Row) -> dict[str, str]:
        return record_digest(row, self.episodes.get(row["epoch"], []))

    def _checkpoints(self) -> Iterator[Mismatch]:
        for epoch, reason in self.unreadable.items():
            yield Mismatch(epoch, "checkpoint", reason)
        for epoch, checkpoint in self.checkpoints.items():
            yield from self._checkpoint(epoch, checkpoint)

    def _checkpoint(self, epoch: int, checkpoint: Checkpoint) -> Iterator[Mismatch]:
        """What one checkpoint holds that the settings, or the row of its epoch, do not say."""
        if checkpoint.epoch != epoch:
            yield Mismatch(epoch, "checkpoint", f"the file of this epoch holds the state of epoch {checkpoint.epoch}")
            return
        if changed := self.run.changed_settings(checkpoint):
            text = f"the checkpoint was made with other settings than {CONFIG} holds ({'; '.join(changed)})"
            yield Mismatch(epoch, "settings", text)
        if self.run.changed_prompts(checkpoint):
            text = f"the checkpoint was made with other prompts than {PROMPTS} holds"
            yield Mismatch(epoch, "prompts", text)
        if not 0 < epoch <= self.last or COLUMN not in self.rows[epoch - 1]:
            return
        left_out = reduced(checkpoint)
        parts = [part for part in other_parts(self.state_after(epoch), checkpoint.digest()) if part not in left_out]
        if parts:
            text = f"the digests of its {listed(parts)} are not those in the epoch's row"
            yield Mismatch(epoch, "checkpoint", text)

    def _end(self) -> Iterator[Mismatch]:
        """Rows and checkpoints end together, apart from what a killed process leaves."""
        kept = {*self.checkpoints, *self.unreadable}
        if not kept:
            return
        newest = max(kept)
        if newest > self.last:
            path = row_file(self.run.path, "epochs").name
            yield Mismatch(newest, "rows", f"there is a checkpoint of this epoch, but {path} ends at {self.last}")
        # A run that was extended finished before, with fewer epochs.
        ends = [event.get("epoch") for event in self.events if event.get("event") == "finished"]
        finished = self.run.config.epochs in ends
        if newest < self.last and (finished or self.last - newest > self.run.config.checkpoint.every):
            text = f"the newest checkpoint is of epoch {newest}; one of a later epoch must have been removed"
            yield Mismatch(self.last, "checkpoint", text)


def reduced(checkpoint: Checkpoint) -> Sequence[str]:
    """The parts of the state that a checkpoint made by `tools/keep_runs.py` has not, or of which it has the policy."""
    return checkpoint.values.get(REDUCED, ())


def other_parts(recorded: Mapping[str, str] | None, found: Mapping[str, str]) -> Sequence[str]:
    """The parts of a state that are not as recorded, or that only one of the two has; none if nothing was recorded."""
    if recorded is None:
        return []
    names = [name for name in {**recorded, **found} if name not in RECORDS]
    return [name for name in names if recorded.get(name) != found.get(name)]


def _also(epochs: Sequence[int]) -> str:
    return f"; the same holds for epoch {listed(epochs[1:])}" if epochs[1:] else ""
