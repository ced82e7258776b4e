"""Hours of a deployment's life in minutes: traffic that never stops, faults that never stop, and nothing that grows."""
