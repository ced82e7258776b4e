"""The proxy harms whole messages of real ZeroMQ connections, and counts what it did."""

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from lab.chaos.expectations import until
from lab.ports import free_port_base
from lab.proxy import FAIR, PROXY_HOST, MessageProxy, Weather
from runtime.dealer_endpoint import DealerEndpoint
from runtime.endpoint import RouterEndpoint, open_context

WAIT_S = 30.0


class Ends:
    """A ROUTER behind the proxy and a DEALER in front of it."""

    def __init__(self) -> None:
        self.context = open_context(1, 16)
        self.port = free_port_base(1)
        self.router = RouterEndpoint(self.context, f"tcp://127.0.0.1:{self.port}")
        self.dealer = DealerEndpoint(self.context, f"tcp://{PROXY_HOST}:{self.port}")
        self.proxy = MessageProxy([self.port], Random(1))

    async def connected(self, yes: bool = True) -> None:
        """Wait until the proxy has let a connection through, or until it has gone."""

        async def so() -> bool:
            self.dealer.connection.read(1)
            return self.dealer.connection.connected is yes

        await until(WAIT_S, "connection", so)

    async def received(self) -> list[bytes]:
        """The next message at the router."""

        async def there() -> bool:
            return bool(self.router.socket.poll(0))

        await until(WAIT_S, "message", there)
        message = self.router.receive()
        assert message is not None
        return message[1]

    async def arrive(self, *texts: bytes) -> list[bytes]:
        """Send each as two frames, and then ``end``, in fair weather; the second frames of what arrives before ``end``."""
        before = self.seen()
        for text in texts:
            self.dealer.send([b"head", text])

        async def all_seen() -> bool:
            return self.seen() == before + len(texts)

        await until(WAIT_S, "proxy", all_seen)
        self.proxy.weather = FAIR
        self.dealer.send([b"head", b"end"])
        found = []
        while (message := await self.received())[1] != b"end":
            assert message[0] == b"head"
            found.append(message[1])
        return found

    def seen(self) -> int:
        """Messages on which the proxy has decided."""
        return self.proxy.befallen["passed"] + self.proxy.befallen["dropped"]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Both ends; the context ends only if every socket was closed."""
    made = Ends()
    yield made
    made.dealer.close()
    made.router.close()
    made.context.term()


def test_messages_are_lost_and_repeated_as_a_whole(ends: Ends) -> None:
    """What is dropped is missing, what is duplicated comes twice, and no message comes in part."""

    async def play() -> None:
        async with ends.proxy:
            await ends.connected()
            ends.proxy.weather = Weather(drop=1.0)
            assert await ends.arrive(b"a", b"b") == []
            ends.proxy.weather = Weather(duplicate=1.0)
            assert await ends.arrive(b"c", b"d") == [b"c", b"c", b"d", b"d"]
            ends.proxy.weather = Weather(delay=1.0, delay_s=0.01)
            assert await ends.arrive(b"e") == [b"e"]
            assert {name: ends.proxy.befallen[name] for name in ("dropped", "duplicated", "delayed")} == {
                "dropped": 2,
                "duplicated": 2,
                "delayed": 1,
            }

    asyncio.run(play())


def test_a_cut_connection_comes_back(ends: Ends) -> None:
    """After every connection was cut new ones pass, and the cut is counted."""

    async def play() -> None:
        async with ends.proxy:
            await ends.connected()
            await ends.proxy.cut()
            await ends.connected(False)
            await ends.connected()
            assert await ends.arrive(b"a") == [b"a"]
            assert ends.proxy.befallen["cut"] == 1

    asyncio.run(play())


def test_a_silent_path_delivers_late(ends: Ends) -> None:
    """While held nothing arrives; released, all of it does, in order."""

    async def play() -> None:
        async with ends.proxy:
            await ends.connected()
            ends.proxy.hold()
            for text in (b"a", b"b"):
                ends.dealer.send([b"head", text])
            await asyncio.sleep(0.05)
            assert ends.router.receive() is None
            ends.proxy.release()
            assert await ends.arrive() == [b"a", b"b"]

    asyncio.run(play())
