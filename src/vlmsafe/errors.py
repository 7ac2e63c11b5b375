"""What a user sees when something is wrong: one line, and a non-zero exit code.

Every error a user can cause, or can do something about, is a `VlmsafeError`. The command line prints its message
and exits with its code; anything else is a defect of this package and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

EXIT_FAILED = 1  # the run could not go on: simulator, disk, numbers
EXIT_BAD_INPUT = 2  # the request itself was wrong; nothing was started
EXIT_WARNINGS = 3  # an audit or a verification shows less than it was asked for
EXIT_ERRORS = 4  # an audit or a verification found that the runs do not show what they say
EXIT_INTERRUPTED = 75  # a training run stopped by SIGINT or SIGTERM and saved (sysexits' EX_TEMPFAIL)
EXIT_AT_ONCE = 130  # stopped by SIGINT without saving anything more, as shells count it

_FEW = 45  # more names than this are not listed: nobody reads them
_NEAREST = 3


class VlmsafeError(Exception):
    """Base of every error that is reported as one line.

    >>> import vlmsafe
    >>> try:
    ...     vlmsafe.make_env("speding")
    ... except vlmsafe.VlmsafeError as error:
    ...     print(str(error)[:62])
    unknown environment 'speding'; did you mean 'speeding'? Known:
    """

    exit_code = EXIT_FAILED

    def shown_traceback(self) -> str:
        """A traceback through the user's own code, which the command line shows above the line; empty without one."""
        return ""


class InputError(VlmsafeError):
    """A name, setting or file that cannot be used."""

    exit_code = EXIT_BAD_INPUT


class MissingDependencyError(InputError):
    """Something that must be installed first; the message holds the command that does it."""


class EnvironmentFailure(VlmsafeError):
    """An environment raised, returned something unusable, or kept crashing its process."""


class RunError(VlmsafeError):
    """A run directory that cannot be used as asked: in use, damaged, or full."""


class Divergence(RunError):
    """The numbers of a run became NaN or infinite."""


class Interrupted(VlmsafeError):
    """The user or the scheduler asked the process to stop; what is on disk can be resumed."""

    exit_code = EXIT_INTERRUPTED


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not in a table: the nearest match first, then all valid names if they are few.

    >>> print(unknown_name("method", "ppolag", ["ppo", "ppo-lag"]))
    unknown method 'ppolag'; did you mean 'ppo-lag'? Known: ppo, ppo-lag
    >>> print(unknown_name("number", "114", map(str, range(100))))
    unknown number '114'; did you mean '14', '11' or '4'? (100 are known)
    """
    names = list(known)
    few = len(names) <= _FEW
    nearest = [f"'{one}'" for one in difflib.get_close_matches(name, names, n=1 if few else _NEAREST, cutoff=0.5)]
    hint = f"; did you mean {' or '.join([', '.join(nearest[:-1])] * (len(nearest) > 1) + nearest[-1:])}?"
    return InputError(
        f"unknown {kind} '{name}'{hint if nearest else '.'} "
        + (f"Known: {', '.join(names)}" if few else f"({len(names)} are known)")
    )


@contextmanager
def yaml_errors(source: str) -> Iterator[None]:
    """Report text that is not YAML in one line: the name of its file and, where it is known, the line."""
    import yaml  # only here, so that `errors` needs nothing but the standard library

    try:
        yield
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{source}{where}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None
