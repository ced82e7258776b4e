"""Writers into a decode rank's staging memory, one module per data plane; the interface is in ``base``."""
