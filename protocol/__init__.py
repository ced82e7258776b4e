"""What both sides must agree on. Pure: no sockets, clocks, threads, environment or logging."""

PROTOCOL_VERSION = 1
