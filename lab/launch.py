"""Become another program, one that cannot outlive the process which started it.

Run as ``python launch.py PARENT_PID PROGRAM ARG...``. The kernel kills the program when its parent dies
(``prctl(PR_SET_PDEATHSIG)``, Linux), whatever the parent died of, and that order survives ``exec``. It is a program of its
own rather than a ``preexec_fn``, which may deadlock in a process that has threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Bind the life of this process to ``arguments[0]``, then ``exec`` the rest. Exits with 1 if the parent is gone already."""
    parent, program = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if os.getppid() != parent:
        sys.exit(1)
    os.execvp(program[0], program)  # noqa: S606  no shell is the point


if __name__ == "__main__":
    main(sys.argv[1:])
