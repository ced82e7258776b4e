"""``prefill-service``: run the prefill side as a daemon."""

from prefill_service.client import PrefillStagingClient
from prefill_service.config import PrefillServiceConfig
from runtime.keygen_command import keygen_command, prefill_steps
from runtime.service_command import service_command

main = service_command("prefill-service", PrefillServiceConfig, PrefillStagingClient)
main.add_command(keygen_command("prefill", prefill_steps))

if __name__ == "__main__":
    main()
