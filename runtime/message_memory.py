"""Memory of large messages that is kept for the next ones, where the C library would give it back with each of them."""

import ctypes

KEPT_BYTES = 32 << 20
"""Free memory that may stay with the process: what a few connections have on their way at once."""

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_THRESHOLD = 32 << 20
"""glibc takes no larger one."""


def keep_message_memory(message_bytes: int) -> bool:
    """Let messages of up to that size come from memory that stays; false if the C library is none that can be told.

    Every message that arrives gets memory of its own, and the kernel clears each page of it anew: a third of the kernel's time
    on a busy data socket. This is for a process of one's own: it holds for everything in it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    threshold = min(2 * message_bytes, _LARGEST_THRESHOLD)
    return bool(mallopt(_M_MMAP_THRESHOLD, threshold)) and bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
