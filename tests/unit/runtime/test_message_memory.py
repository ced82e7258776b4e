"""Freed memory of large messages stays with the process."""

import subprocess
import sys

PROGRAM = """
import ctypes, resource, sys
from runtime.message_memory import keep_message_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
SIZE = 4 << 20

def receive():
    messages = [libc.malloc(SIZE) for _ in range(4)]
    for message in messages:
        libc.memset(message, 1, SIZE)
    for message in messages:
        libc.free(message)

if sys.argv[1] == "keep":
    assert keep_message_memory(SIZE)
for _ in range(3):
    receive()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    receive()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    """Pages that the kernel had to give while ten times four messages came and went."""
    command = [sys.executable, "-c", PROGRAM, mode]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


def test_pages_are_not_asked_for_again() -> None:
    """Messages after the first ones find their memory where the former ones left it."""
    assert faults("keep") < 100 < faults("leave")
