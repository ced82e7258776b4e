"""Staging memory, one module per data plane; the interface is in ``base``."""
