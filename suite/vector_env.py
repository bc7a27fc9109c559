"""What `docs/api.md` promises of `suite.envs.vector_env`."""

from suite.envs.vector_env import Spaces, Step, VectorEnv

__all__ = ["Spaces", "Step", "VectorEnv"]
