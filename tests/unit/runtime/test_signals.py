"""Signals reach their actions in a thread where locks are safe."""

import os
import signal
import threading

from runtime.signals import SignalWatch

WAIT_S = 30.0


def test_action_runs_while_the_main_thread_waits() -> None:
    """An action may take a lock that the main thread holds while it waits: it runs in a thread of its own."""
    lock, acted = threading.Lock(), threading.Event()
    threads: list[threading.Thread] = []

    def act() -> None:
        with lock:
            threads.append(threading.current_thread())
            acted.set()

    with SignalWatch({signal.SIGUSR2: act}):
        with lock:
            os.kill(os.getpid(), signal.SIGUSR2)
        assert acted.wait(WAIT_S)
    assert threads != [threading.main_thread()]


def test_each_signal_has_its_own_action_any_number_of_times() -> None:
    """Two watched signals run two actions, and a repeated signal runs its action again."""
    seen: list[str] = []
    first, second, third = threading.Event(), threading.Event(), threading.Event()

    def on_usr2() -> None:
        seen.append("usr2")
        (second if first.is_set() else first).set()

    def on_term() -> None:
        seen.append("term")
        third.set()

    with SignalWatch({signal.SIGUSR2: on_usr2, signal.SIGTERM: on_term}):
        os.kill(os.getpid(), signal.SIGUSR2)
        assert first.wait(WAIT_S)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert second.wait(WAIT_S)
        os.kill(os.getpid(), signal.SIGTERM)
        assert third.wait(WAIT_S)
    assert seen == ["usr2", "usr2", "term"]


def test_everything_is_put_back() -> None:
    """After the watch the handlers and the wake-up descriptor are what they were, and its thread has ended."""
    before = signal.getsignal(signal.SIGUSR2)
    with SignalWatch({signal.SIGUSR2: lambda: None}):
        assert signal.getsignal(signal.SIGUSR2) is not before
    assert signal.getsignal(signal.SIGUSR2) is before
    assert signal.set_wakeup_fd(-1) == -1
    assert "signals" not in {thread.name for thread in threading.enumerate()}
