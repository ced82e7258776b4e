"""Engines that speak through the two services: each in a package of its own, and no engine is a dependency of the product."""
