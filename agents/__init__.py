"""One file per algorithm. `load_policy(run)` loads what any of them has trained."""

import importlib
import pkgutil
from pathlib import Path
from typing import Any

AGENTS = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
"""Names of the agents: one module each."""


def load_policy(run: str | Path) -> Any:
    """Load the policy that a finished run saved; call it with observations to get actions.

    Args:
        run: a run's folder, for example `runs/sac-mujoco/paper/HalfCheetah-v4/seed-1`.

    Raises:
        UsageError: if the folder holds no readable policy, or one of an unknown agent or of one
            without `load`, or if the run is damaged (its files differ from its manifest, or its
            record from its folder).
    """
    from suite.base.errors import UsageError
    from suite.policy import read_policy, rebuild_policy
    from suite.record.reading import refuse_damaged

    weights, description = read_policy(Path(run))
    if description["agent"] not in AGENTS:
        raise UsageError(
            f"{run} was trained by {description['agent']!r:.100}, which is not an agent here"
        )
    agent = importlib.import_module(f"agents.{description['agent']}")
    if not hasattr(agent, "load"):
        raise UsageError(f"agents/{description['agent']}.py has no load: see CONTRIBUTING.md")
    policy = rebuild_policy(Path(run), agent.load, weights, description)
    refuse_damaged(Path(run))
    return policy
