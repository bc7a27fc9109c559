"""The same on a Ray cluster."""
