"""``prefill-service``: run the prefill side as a daemon."""

from prefill_service.client import PrefillStagingClient
from prefill_service.config import PrefillServiceConfig
from runtime.explain_command import explain_command
from runtime.keygen_command import keygen_command, prefill_steps
from runtime.service_command import service_command
from runtime.top_command import top_command

main = service_command("prefill-service", PrefillServiceConfig, PrefillStagingClient)
main.add_command(keygen_command("prefill", prefill_steps))
main.add_command(explain_command("prefill", PrefillServiceConfig().http_port))
main.add_command(top_command(PrefillServiceConfig().http_port))

if __name__ == "__main__":
    main()
