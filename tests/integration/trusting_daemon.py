"""A decode daemon that takes a lapsed lease for proof, which the protocol forbids. Run as a module, with ``serve ...``."""

from unittest.mock import patch

from decode_service.closing import Closing
from decode_service.config import DecodeServiceConfig
from decode_service.server import DecodeStagingServer
from decode_service.sessions import Session
from runtime.service_command import service_command

_end_session = Closing.end_session


def end_session_on_a_guess(self: Closing, session: Session, reason: str, *, quiet: bool, life_over: bool) -> None:  # noqa: ARG001
    """Whoever is fenced is believed to write no more."""
    _end_session(self, session, reason, quiet=True, life_over=life_over)


if __name__ == "__main__":
    with patch.object(Closing, "end_session", end_session_on_a_guess):
        service_command("decode-service", DecodeServiceConfig, DecodeStagingServer).main()
