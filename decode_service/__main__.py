"""``decode-service``: run the decode side as a daemon."""

from decode_service.config import DecodeServiceConfig
from decode_service.server import DecodeStagingServer
from runtime.service_command import service_command

main = service_command("decode-service", DecodeServiceConfig, DecodeStagingServer)

if __name__ == "__main__":
    main()
