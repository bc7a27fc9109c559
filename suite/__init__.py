"""What the agents share, in subpackages; each imports only those before it.

base      errors, files, snapshots of state, the machine and its code, randomness
envs      tasks, and the environments that simulate them
settings  configurations, presets of sources, the command line
nets      layers, initial weights, optimisers, running moments
record    a run's folder: its record, its tables, what makes it whole, the live view

Bad input is a `UsageError`, what a disk refuses an `OSError`, wherever either may arise.

The modules beside them are the frame of a training: sessions, unrolls, replay, updates,
evaluation, trained policies. `docs/api.md` lists what users import.
"""
