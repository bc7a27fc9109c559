"""Tasks, vectorised environments, recording and hardware facts: everything but learning."""
