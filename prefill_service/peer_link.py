"""One prefill rank's control connection to one decode rank."""

from collections.abc import Callable
from functools import partial

from prefill_service.describing import Unsent
from prefill_service.surroundings import Surroundings
from protocol.codec import decode_to_prefill, encode
from protocol.errors import RemoteProtocolError
from protocol.messages import Subscribe, ToDecode, ToPrefill
from runtime.dealer_endpoint import DealerEndpoint
from runtime.endpoint import SendOutcome


class PeerLink:
    """Reads and checks what one decode rank sends. Raises ``StartError`` if no socket is left."""

    def __init__(
        self,
        peer: str,
        around: Surroundings,
        receive: Callable[[str, ToPrefill], None],
        refuse: Callable[[str, RemoteProtocolError], None],
    ) -> None:
        self.peer = peer
        self._connections = around.connections
        connect = partial(self._connections.connect, came_about=self._send_opening)
        self.dealer = DealerEndpoint(around.context, peer, connect=connect)
        self._loop = around.loop
        self._receive = receive
        self._refuse = refuse
        self._opening: list[bytes] | None = None
        """The latest ``SUBSCRIBE``, while there is no connection that could take it."""
        self._unsent_since: float | None = None
        self._unsent = 0
        """Messages that did not leave since the last one that did."""
        self._loop.add_reader(self.dealer.socket, self.read)

    def send(self, message: ToDecode) -> SendOutcome:
        """Send without blocking. A ``SUBSCRIBE`` that finds no connection goes out as soon as there is one.

        Being late only shortens the lease that its answer gives, which counts from when the machine wanted it sent.
        """
        frames = encode(message)
        outcome = self.dealer.send(frames)
        self._count(outcome)
        if isinstance(message, Subscribe):
            self._opening = frames if outcome is SendOutcome.FULL else None
        return outcome

    def unsent(self) -> Unsent | None:
        """What did not leave since the last message that did, and why; ``None`` if nothing is held up."""
        if self._unsent_since is None:
            return None
        obstacle = "the queue is full towards" if self.dealer.connection.connected else "no connection to"
        return Unsent(self._unsent_since, self._unsent, obstacle, self._connections.trouble_of(self.dealer.socket))

    def read(self, limit: int) -> bool:
        """Take at most ``limit`` messages; true if more may be waiting."""
        for _ in range(limit):
            if self.dealer.socket.closed:
                return False
            frames = self.dealer.receive()
            if frames is None:
                return False
            try:
                message = decode_to_prefill(frames)
            except RemoteProtocolError as error:
                self._refuse(self.peer, error)
            else:
                self._receive(self.peer, message)
        return True

    def close(self, linger_ms: int) -> None:
        """Stop reading and close; what was just sent gets at most ``linger_ms`` to leave."""
        self._loop.remove_reader(self.dealer.socket)
        self._connections.forget(self.dealer.socket)
        self.dealer.close(linger_ms)

    def _send_opening(self) -> None:
        if self._opening is not None and self.dealer.send(self._opening) is not SendOutcome.FULL:
            self._opening = None
            self._count(SendOutcome.SENT)

    def _count(self, outcome: SendOutcome) -> None:
        if outcome is SendOutcome.SENT:
            self._unsent_since, self._unsent = None, 0
            return
        self._unsent += 1
        if self._unsent_since is None:
            self._unsent_since = self._loop.clock()
