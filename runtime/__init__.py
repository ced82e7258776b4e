"""What both daemons do to the outside world, once: sockets, settings, logs, processes."""
