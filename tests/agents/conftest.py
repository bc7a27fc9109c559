"""What the agents' tests share."""

import pytest

from suite import session
from tests.scripted import ScriptedEnv


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedEnv]:
    """Make the agent train on a fresh kind of ScriptedEnv."""

    class Env(ScriptedEnv):
        pass

    monkeypatch.setattr(session, "VectorEnv", Env)
    return Env
