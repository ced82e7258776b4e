"""``decode-service``: run the decode side as a daemon."""

from decode_service.config import DecodeServiceConfig
from decode_service.server import DecodeStagingServer
from runtime.keygen_command import decode_steps, keygen_command
from runtime.service_command import service_command

main = service_command("decode-service", DecodeServiceConfig, DecodeStagingServer)
main.add_command(keygen_command("decode", decode_steps))

if __name__ == "__main__":
    main()
