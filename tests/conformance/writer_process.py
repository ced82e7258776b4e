"""A writer of the shm plane as a process of its own, so that a test can kill or stop it for real.

Arguments: directory, segment, session, ring size. Says ``open`` on stdout once the ring is mapped and its first byte written,
then waits for a line on stdin and closes in order.
"""

import sys
from pathlib import Path

from prefill_service.outputs import WriteChunk
from prefill_service.writers.shm import ShmWriter
from protocol.layout import PageRun


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main() -> None:
    """Open the plane, write one byte, wait to be told to go, or to be killed."""
    directory, segment, session, ring_size = sys.argv[1:]
    writer = ShmWriter(Path(directory), {"segment": segment}, session, int(ring_size))
    write = WriteChunk(1, "peer", session, "room", 0, 1, 1, 0, 1, PageRun((0,)), 0, 1)
    block = writer.acquire(write)
    block[0] = 0xAB
    block.release()
    _say("open")
    sys.stdin.readline()
    writer.close()
    _say("closed")
    sys.stdin.readline()


if __name__ == "__main__":
    main()
