"""What the agents' tests share."""

from typing import Any

import numpy as np
import pytest

from suite import session
from tests.scripted import ScriptedEnv


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedEnv]:
    """Make the agent train on a fresh kind of ScriptedEnv, with evaluations that score 0."""

    class Env(ScriptedEnv):
        pass

    def evaluate(task: Any, act: Any, seeds: Any, env_steps: int, **options: Any) -> Any:
        return np.zeros((len(seeds), options["episodes"])), None

    monkeypatch.setattr(session, "VectorEnv", Env)
    monkeypatch.setattr(session, "evaluate", evaluate)
    return Env
