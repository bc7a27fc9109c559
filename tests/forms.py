"""Cases of one property: one of every agent always, its further forms under `make check`."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def by_agent(
    cases: Iterable[str], agent_of: Callable[[str], str] = lambda case: case.partition(",")[0]
) -> list[Any]:
    """Return parameters for a test; all but an agent's first case are marked `further`."""
    met: set[str] = set()
    parameters = []
    for case in cases:
        agent = agent_of(case)
        parameters.append(pytest.param(case, marks=[pytest.mark.further] if agent in met else []))
        met.add(agent)
    return parameters
