"""Layers, initial weights, optimisers, running moments."""
