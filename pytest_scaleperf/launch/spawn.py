"""Start one program in a session of its own, with exactly the folder, environment and output file that were ordered.

Standard library only. For the guardian: changes the working folder for a moment, so the process has one thread.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

_DEFAULT_SIGNALS = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGTERM,
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGTSTP,
)
"""What Python or the guardian ignores, and the job would inherit as ignored."""


@dataclass(frozen=True, slots=True)
class Order:
    """One job to start; texts are as Python's file-system encoding gives them, paths absolute."""

    job: int
    marker: str
    argv: list[str]
    env: Mapping[str, str]
    cwd: str
    output: str


class RefusedError(Exception):
    """The system would not start a job: at which of argv, cwd, output or env, why, and the errno if there is one."""

    def __init__(self, where: str, why: str, number: int | None) -> None:
        super().__init__(where, why, number)
        self.where = where
        self.why = why
        self.number = number


def spawn(order: Order) -> int:
    """Start the program and return its pid; its stdout and stderr are appended to the output file, stdin is empty.

    Raises RefusedError where the system does not start it.
    """
    try:
        os.chdir(order.cwd)
    except (OSError, ValueError) as error:
        raise _refused("cwd", error) from None
    try:
        output = os.open(order.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except (OSError, ValueError) as error:
        raise _refused("output", error) from None
    try:
        return _execute(order, output)
    finally:
        os.close(output)
        # Not to stand in a folder that somebody may want to remove or unmount.
        os.chdir("/")


def _execute(order: Order, output: int) -> int:
    actions = (
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
    )
    refusal: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for path in _candidates(order):
        try:
            return os.posix_spawn(
                path,
                order.argv,
                order.env,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=_DEFAULT_SIGNALS,
            )
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            # As execvp(3): a later folder of PATH may hold one that runs; if none does, this is what is told.
            refusal = error
        except ValueError as error:
            raise _refused("env", error) from None
    raise _refused("argv", refusal)


def _candidates(order: Order) -> list[str]:
    """Where the program may lie: the path itself, or each folder of the job's own PATH."""
    program = order.argv[0]
    if "/" in program:
        return [program]
    return [f"{folder or '.'}/{program}" for folder in order.env.get("PATH", os.defpath).split(os.pathsep)]


def _refused(where: str, error: OSError | ValueError) -> RefusedError:
    if isinstance(error, OSError) and error.errno is not None:
        return RefusedError(where, os.strerror(error.errno), error.errno)
    return RefusedError(where, str(error), None)
