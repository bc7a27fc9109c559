"""Verdicts, their statistics, and how often they err."""
