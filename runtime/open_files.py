"""The limit on open files, checked before a daemon opens any: libzmq aborts the process where it needs one and none is left."""

import resource

from runtime.errors import StartError

FIXED, PER_RANK = 64, 16
"""What a daemon holds open for itself and for each of its ranks, with some room for the first connections."""


def require_open_files(ranks: int) -> None:
    """Raise ``StartError`` if this process may not open what a daemon with so many ranks needs."""
    needed = FIXED + PER_RANK * ranks
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < needed:
        cause = f"too many open files for the limit of {limit}"
        raise StartError(f"open the {needed} files that {ranks} ranks need", cause, "raise the limit on open files (ulimit -n)")
