"""``decode-service``: run the decode side as a daemon."""

from decode_service.config import DecodeServiceConfig
from decode_service.server import DecodeStagingServer
from runtime.explain_command import explain_command
from runtime.keygen_command import decode_steps, keygen_command
from runtime.service_command import service_command
from runtime.top_command import top_command

main = service_command("decode-service", DecodeServiceConfig, DecodeStagingServer)
main.add_command(keygen_command("decode", decode_steps))
main.add_command(explain_command("decode", DecodeServiceConfig().http_port))
main.add_command(top_command(DecodeServiceConfig().http_port))

if __name__ == "__main__":
    main()
