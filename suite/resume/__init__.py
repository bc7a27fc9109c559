"""Checkpoints of a run, and trained policies."""
