"""Errors, files, the machine, randomness, work beside training."""
