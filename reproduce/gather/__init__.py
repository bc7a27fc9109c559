"""Ours and theirs as tables: recorded runs, stored references."""
