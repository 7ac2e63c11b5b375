"""A step of a run whose files are kept at a URL. It can run on any machine:

    python -m vlmsafe.studies.remote.run_side URL RUN -- train --resume @run --quiet

fetches the run into a folder of this machine, runs the command there, and copies the run back at each new checkpoint
and at the end. `@run` stands for that folder and `@config` for the settings that the study wrote for the run. The exit
code is the command's. A request to stop is passed on to the command, and what it saves is copied. If this process is
killed, the command is killed too.

If the store cannot be reached at the end, the last copy is retried for an hour. After that the folder stays, and its
path is printed. Folders left by processes that were killed are removed by the next one on the same machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType

from vlmsafe.errors import EXIT_FAILED, RunError, VlmsafeError
from vlmsafe.io.disk import make_directory
from vlmsafe.io.locks import DirectoryLock, is_locked
from vlmsafe.runs.checkpoint import saved_epochs
from vlmsafe.runs.layout import is_run
from vlmsafe.studies.launch.local import start_process
from vlmsafe.studies.remote.store import STUDY_TREE, Store, Taken, Tree, Unreachable

_PAUSE = 0.2
_EVERY = 60.0  # seconds between two copies of a step that writes no checkpoints
_FIRST_COPY, _LAST_COPY = 300.0, 3600.0  # seconds for which the first and the last copy are tried
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 300.0  # seconds between two tries; pauses double
_PREFIX, _UNSAVED = "vlmsafe-run-", "kept"
_AGE = 60.0  # seconds after which an unlocked folder counts as left behind; a younger one may just be in the making


def remote_words(url: str, run: str, words: Sequence[str]) -> tuple[str, ...]:
    """The command for a step of a run at a URL; `words` follow `vlmsafe`, with @run and @config."""
    return (sys.executable, "-m", "vlmsafe.studies.remote.run_side", url, run, "--", *words)


def main(url: str, run: str, words: Sequence[str]) -> int:
    store, owner = Store(url), f"{uuid.uuid4().hex[:12]}"
    remove_left_behind(Path(tempfile.gettempdir()))
    scratch = Path(tempfile.mkdtemp(prefix=_PREFIX))
    # The folder of a run ends with its environment, arm and seed, because other code reads them from the path.
    folder, configs = scratch / "run" / run, scratch / "study"
    try:
        with DirectoryLock(scratch):
            tree = store.tree(run)
            _persist(lambda: tree.claim(owner), _FIRST_COPY)
            _persist(lambda: tree.fetch(folder), _FIRST_COPY)
            config = f"configs/{run}.yaml"
            words = _resumed_if_begun(words, folder)
            if "@config" in words:
                _persist(lambda: store.tree(STUDY_TREE).fetch(configs, [config]), _FIRST_COPY)
            places = {"@run": str(folder), "@config": str(configs / config)}
            return _follow([places.get(word, word) for word in words], folder, tree, owner, scratch / _UNSAVED)
    except VlmsafeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        if (scratch / _UNSAVED).exists():
            print(f"the run could not be copied and stays in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(scratch, ignore_errors=True)


def remove_left_behind(place: Path) -> None:
    """Remove the folders of processes that were killed, unless they hold a run that could not be copied."""
    for scratch in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # another process may remove it too
            about = scratch.stat()
            old = time.time() > about.st_mtime + _AGE
            if old and about.st_uid == os.getuid() and not (scratch / _UNSAVED).exists() and not is_locked(scratch):
                shutil.rmtree(scratch, ignore_errors=True)


def _resumed_if_begun(words: Sequence[str], folder: Path) -> Sequence[str]:
    """The command, but resuming a run that was started elsewhere without the study knowing it."""
    if words[0] != "train" or "--resume" in words or not is_run(folder):
        return words
    service = [[word, after] for word, after in pairwise(words) if word == "--signal.service"]
    return ["train", "--resume", "@run", "--quiet", *(word for pair in service for word in pair)]


def _follow(words: Sequence[str], folder: Path, tree: Tree, owner: str, unsaved: Path) -> int:
    """Run the command to its end, and copy the run after each checkpoint."""
    make_directory(folder.parent)
    vlmsafe = (sys.executable, "-m", "vlmsafe")
    process = start_process((*vlmsafe, *words), sys.stdout.buffer, os.environ, same_session=True)

    asked: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    saved, due = saved_epochs(folder / "checkpoints"), time.monotonic() + _EVERY
    while (code := process.poll()) is None:
        time.sleep(_PAUSE)
        now = saved_epochs(folder / "checkpoints")
        if now == saved and time.monotonic() < due:
            continue
        saved, due = now, time.monotonic() + _EVERY
        try:
            tree.store(folder, owner)
        except Taken:
            process.kill()
            process.wait()
            raise
        except RunError as error:
            print(f"not copied, will be tried again later: {error}", file=sys.stderr, flush=True)
    if folder.exists():
        _store_at_last(folder, tree, owner, unsaved, asked)
    if code < 0:
        print(f"error: the command was ended by {signal.Signals(-code).name}", file=sys.stderr)
        return EXIT_FAILED
    return code


def _store_at_last(folder: Path, tree: Tree, owner: str, unsaved: Path, asked: Sequence[int]) -> None:
    """Copy the run as soon as the store can be reached; a second request to stop ends the waiting."""
    try:
        # The folder is marked at the first failure, because this process may be killed while it waits.
        _persist(lambda: tree.store(folder, owner), _LAST_COPY, unsaved.touch, lambda: len(asked) > 1)
    except Taken:
        unsaved.unlink(missing_ok=True)  # another process has taken the run over
        raise
    unsaved.unlink(missing_ok=True)


def _persist(
    action: Callable[[], object],
    seconds: float,
    at_first: Callable[[], None] = lambda: None,
    given_up: Callable[[], bool] = lambda: False,
) -> None:
    """Do something at the store as soon as it can be reached; `at_first` is called at the first failure."""
    end, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while True:
        try:
            action()
            return
        except Unreachable as error:
            if pause == _FIRST_PAUSE:
                at_first()
                print(f"retrying for {seconds / 60:.0f} minutes: {error}", file=sys.stderr, flush=True)
            due = time.monotonic() + pause
            if due > end:
                raise
            while time.monotonic() < due:
                if given_up():
                    raise
                time.sleep(_PAUSE)
        pause = min(2 * pause, _LONGEST_PAUSE)


if __name__ == "__main__":
    url, run, _, *rest = sys.argv[1:]
    sys.exit(main(url, run, rest))
