"""What to run: tasks and seeds, which runs count, where they go, what they can decide."""
