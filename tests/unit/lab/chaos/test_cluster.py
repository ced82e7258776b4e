"""What a scenario needs to know of a deployment and its processes before it harms them."""

import os
import signal
import subprocess
import sys

from lab.chaos.cluster import ClusterOptions, thread_states


def test_a_prefill_daemon_is_a_group_of_its_own() -> None:
    """One entry of planes is one daemon; its ranks and the ring follow from the options."""
    shape = ClusterOptions(planes=("shm", "zmq", "zmq"), prefill_tp=2, decode_tp=4, ring_chunks=2).shape()
    assert (shape.prefill_groups, shape.group_size, shape.decode_ranks) == (3, 2, 4)
    assert shape.ring_bytes == 2 * shape.chunk_bytes(shape.chunk_tokens)


def test_a_stopped_process_is_seen_to_stand_still() -> None:
    """After SIGSTOP every thread of the process comes to the stopped state, and before it none is there."""
    program = "import threading; threading.Thread(target=input, daemon=True).start(); print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert "T" not in thread_states(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert thread_states(process.pid) == {"T"}
        process.kill()
