"""Cases of one property: one of every agent always, its further forms under `make test-slow`."""

from collections.abc import Iterable
from typing import Any

import pytest


def by_agent(cases: Iterable[Any]) -> list[Any]:
    """Return parameters for a test; all but an agent's first case are marked `further`.

    Cases are names, or tuples that begin with one; an agent is what stands before the comma.
    """
    met: set[str] = set()
    parameters = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        agent = values[0].partition(",")[0]
        marks = [pytest.mark.further] if agent in met else []
        parameters.append(pytest.param(*values, marks=marks))
        met.add(agent)
    return parameters
