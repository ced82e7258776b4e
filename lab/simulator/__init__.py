"""A whole deployment in one thread: the shipped machines and codec, a virtual clock, and a seeded world that does its worst."""
