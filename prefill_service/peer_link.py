"""One prefill rank's control connection to one decode rank."""

from collections.abc import Callable

from prefill_service.surroundings import Surroundings
from protocol.codec import decode_to_prefill
from protocol.errors import RemoteProtocolError
from protocol.messages import ToPrefill
from runtime.endpoint import DealerEndpoint


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
        self.dealer = DealerEndpoint(around.context, peer, connect=self._connections.connect)
        self._loop = around.loop
        self._receive = receive
        self._refuse = refuse
        self._loop.add_reader(self.dealer.socket, self.read)

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
