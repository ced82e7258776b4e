"""Everything that exercises the pair. It may import all; nothing imports it."""
