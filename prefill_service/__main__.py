"""``prefill-service``: run the prefill side as a daemon."""

from prefill_service.client import PrefillStagingClient
from prefill_service.config import PrefillServiceConfig
from runtime.service_command import service_command

main = service_command("prefill-service", PrefillServiceConfig, PrefillStagingClient)

if __name__ == "__main__":
    main()
