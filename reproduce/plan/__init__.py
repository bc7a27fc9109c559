"""What to run: tasks and seeds, which finished runs count, where they go."""
