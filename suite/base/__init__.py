"""Errors, files, the machine, randomness."""
