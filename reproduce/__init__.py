"""The harness: plan a grid of seeded runs, launch it, gather, compare with references, report."""
