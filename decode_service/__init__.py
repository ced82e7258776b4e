"""The decode side: owns the staging ring, grants regions of it, scatters what arrived and frees it."""
