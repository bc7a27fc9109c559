"""Configurations, presets of sources, and the command line."""
