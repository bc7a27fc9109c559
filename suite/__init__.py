"""Tasks, environments, records, networks' parts, optimisers and replay: shared by all agents."""
