"""Commands that run at once, in this process: a new one takes most of a second to start.

`call` is for tests of what a command does and says; `InProcess` launches the many commands of a study.
"""

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vlmsafe.cli import main
from vlmsafe.studies.launch.api import Command, Handle, Launcher


@dataclass(frozen=True)
class Answer:
    """What `subprocess.run` would say of the command."""

    returncode: int
    stdout: str
    stderr: str


def call(*words: str | Path) -> Answer:
    """Run `vlmsafe` with these words to its end."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(word) for word in words])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
    return Answer(code, out.getvalue(), err.getvalue())


class Ended(Handle):
    def __init__(self, code: int) -> None:
        self.code, self.polled = code, False

    def poll(self) -> int | None:
        self.polled = True
        return self.code

    def stop(self, now: bool = False) -> None:
        pass


class InProcess(Launcher):
    """One command at a time. Remembers what it was given; `before` may raise or change files first."""

    def __init__(self, before: Callable[[Command], None] = lambda command: None) -> None:
        self.launched: list[tuple[str, ...]] = []
        self.before = before
        self.last: Ended | None = None

    def launch(self, command: Command) -> Handle | None:
        if self.last is not None and not self.last.polled:
            return None
        words = command.words[3:]
        self.launched.append(words)
        said, code = io.StringIO(), 0
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                self.before(command)
                main(words)
            except SystemExit as exit_:
                code = int(exit_.code or 0)
        command.log.parent.mkdir(parents=True, exist_ok=True)
        with command.log.open("a") as log:
            log.write(said.getvalue())
        self.last = Ended(code)
        return self.last

    def describe(self) -> str:
        return "this process"


def trainings(launcher: InProcess) -> int:
    return sum(words[0] == "train" for words in launcher.launched)
