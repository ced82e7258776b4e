"""What both services share, with a side that owns nothing but one resource."""

from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

import pytest

from prefill_service.config import PrefillServiceConfig
from prefill_service.metrics import describe
from runtime.commands import Commands
from runtime.endpoint import Context
from runtime.engine_protocol import Body, EngineError
from runtime.errors import StartError
from runtime.room_waiters import RoomKey, RoomOutcome
from runtime.staging_service import StagingService
from runtime.telemetry import Telemetry
from tests.unit.embedded import WAIT_S, leftovers, prefill_config


class OneSide(StagingService):
    """Answers ``hello``, writes down what happens to it, and cannot open its ranks if it was told so."""

    def __init__(self, config: PrefillServiceConfig, obstacle: StartError | None = None) -> None:
        super().__init__("side", config.prefill_id, config, max_sockets=64)
        self.log: list[str] = []
        self.obstacle = obstacle
        self.offer(Commands({"hello": lambda body: {"hello": body["name"]}}), describe)

    def reload(self) -> None:
        """Write it down."""
        self.log.append("reload")

    def begin_drain(self) -> None:
        """Write it down."""
        self.log.append("drain")

    def is_idle(self) -> bool:
        """Always."""
        return True

    def begin_leaving(self) -> None:
        """Write it down."""
        self.log.append("leave")

    def has_left(self) -> bool:
        """Always."""
        return True

    def open_ranks(self, context: Context, telemetry: Telemetry, undo: ExitStack) -> None:
        """Take the resource, then fail if it must."""
        assert not context.closed
        assert telemetry is not None
        self.log.append("open")
        undo.callback(self.log.append, "close")
        if self.obstacle is not None:
            raise self.obstacle


def test_it_opens_answers_and_ends_in_order(tmp_path: Path) -> None:
    """What the side opened is closed last, after the drain and the farewell; commands are answered until then."""
    with OneSide(prefill_config(tmp_path)) as service:
        assert service._calls.call("hello", name="you").result(WAIT_S) == {"hello": "you"}
        assert list(service.endpoints) == ["engine"]
        service.dump_flight()
    assert service.log == ["open", "drain", "leave", "close"]
    assert service.join() == 0
    with pytest.raises(EngineError, match="closed"):
        service._calls.call("hello", name="you")


def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """What was opened is closed again, and another may start in its place."""
    service = OneSide(prefill_config(tmp_path), StartError("open a rank", "no", "ask again"))
    with pytest.raises(StartError, match="open a rank: no; ask again"):
        service.start()
    assert service.log == ["open", "close"]
    assert leftovers(tmp_path) == []
    with OneSide(prefill_config(tmp_path)):
        pass


def test_those_who_wait_are_told_of_the_end(tmp_path: Path) -> None:
    """A room's outcome reaches its waiters; whoever waits when the daemon ends is told that."""
    service = OneSide(prefill_config(tmp_path))
    futures: list[Future[Body]] = [Future(), Future()]
    for room, future in zip("ab", futures, strict=True):
        service._waiters.add(RoomKey(0, room), future, None)
    service.room_ended(RoomOutcome("a", 0, done=True))
    assert futures[0].result(0)["outcome"] == "done"
    with service:
        pass
    with pytest.raises(EngineError, match="stopped before the room ended"):
        futures[1].result(0)
