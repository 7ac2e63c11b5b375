"""A step of a run whose files are kept at a URL, on whatever machine:

    python -m vlmsafe.studies.remote_run URL RUN -- train --resume @run --quiet

fetches the run into a folder of this machine, runs the command there, and copies the run back at each new checkpoint
and at the end. `@run` stands for that folder and `@config` for the settings that the study wrote for the run. The exit
code is the command's. When asked to stop, so is the command, and what it saves is copied; what ends this process at
once ends the command with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from vlmsafe.errors import EXIT_FAILED, RunError, VlmsafeError
from vlmsafe.studies.launchers import start_process
from vlmsafe.studies.storage import STUDY_TREE, Store, Taken, Tree
from vlmsafe.training.checkpoint import saved_epochs
from vlmsafe.training.files import make_directory

_PAUSE = 0.2
_EVERY = 60.0  # seconds between two copies of a step that writes no checkpoints
_TRIES, _FIRST_PAUSE = 6, 2.0  # for the last copy: the store may be out of reach for a while; pauses double


def remote_words(url: str, run: str, words: Sequence[str]) -> tuple[str, ...]:
    """The command for a step of a run at a URL; `words` are those of the command line, with @run and @config."""
    return (sys.executable, "-m", "vlmsafe.studies.remote_run", url, run, "--", *words)


def main(url: str, run: str, words: Sequence[str]) -> int:
    store, owner = Store(url), f"{uuid.uuid4().hex[:12]}"
    scratch = Path(tempfile.mkdtemp(prefix="vlmsafe-"))
    # The folder of a run in a study ends with its environment, arm and seed, and other code reads them there.
    folder, configs = scratch / "run" / run, scratch / "study"
    try:
        tree = store.tree(run)
        tree.claim(owner)
        tree.fetch(folder)
        config = configs / "configs" / f"{run}.yaml"
        if "@config" in words:
            store.tree(STUDY_TREE).fetch(configs)
        places = {"@run": str(folder), "@config": str(config)}
        return _follow([places.get(word, word) for word in words], folder, tree, owner)
    except VlmsafeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _follow(words: Sequence[str], folder: Path, tree: Tree, owner: str) -> int:
    """Run the command to its end, and copy what it has saved as often as it does."""
    make_directory(folder.parent)
    vlmsafe = (sys.executable, "-m", "vlmsafe.cli")
    process = start_process((*vlmsafe, *words), sys.stdout.buffer, os.environ, same_session=True)

    def pass_on(number: int, frame: FrameType | None) -> None:
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
            print(f"not copied, and tried again later: {error}", file=sys.stderr, flush=True)
    if folder.exists():
        _store_at_last(folder, tree, owner)
    if code < 0:
        print(f"error: the command was ended by {signal.Signals(-code).name}", file=sys.stderr)
        return EXIT_FAILED
    return code


def _store_at_last(folder: Path, tree: Tree, owner: str) -> None:
    pause = _FIRST_PAUSE
    for attempt in range(_TRIES):
        try:
            tree.store(folder, owner)
            return
        except Taken:
            raise
        except RunError:
            if attempt == _TRIES - 1:
                raise
        time.sleep(pause)
        pause *= 2


if __name__ == "__main__":
    url, run, _, *rest = sys.argv[1:]
    sys.exit(main(url, run, rest))
