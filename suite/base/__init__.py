"""Errors, files, snapshots of state, the machine and its code, randomness."""
