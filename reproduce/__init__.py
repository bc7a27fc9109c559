"""The harness: subpackages in the order of its stages; each imports only those before it.

plan      what to run: tasks and seeds, which finished runs count, where they go
run       processes, leases, progress, the live view, Ray
gather    tables of our recorded runs and of stored references
judge     verdicts, their statistics, and how often they err
report    figures and the page
speed     workloads: their exact cost, and their speed beside another commit's
simulators  engines that step many environments: their speeds, beside those of trainings
controls  other libraries' programs, run as grids of ours and published as references
commands  what a user types: a file for each word of the command line

`pipeline.py` joins gather, judge and report; `__main__.py` lists the commands.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The project's folder."""
