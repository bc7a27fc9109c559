"""Simulators: how fast each engine steps its environments, and whether all do the same work."""
