"""``decode-service``: run the decode side as a daemon."""

from decode_service.config import DecodeServiceConfig
from decode_service.server import DecodeStagingServer
from runtime.explain_command import explain_command
from runtime.keygen_command import decode_steps, keygen_command
from runtime.message_memory import keep_message_memory
from runtime.service_command import service_command
from runtime.top_command import top_command


def make_daemon(config: DecodeServiceConfig) -> DecodeStagingServer:
    """The server in a process of its own, which an engine that embeds one is not."""
    if config.has_data_port:
        keep_message_memory(config.piece_bytes)
    return DecodeStagingServer(config)


main = service_command("decode-service", DecodeServiceConfig, make_daemon)
main.add_command(keygen_command("decode", decode_steps))
main.add_command(explain_command("decode", DecodeServiceConfig().http_port))
main.add_command(top_command(DecodeServiceConfig().http_port))

if __name__ == "__main__":
    main()
