"""What `docs/api.md` promises of `suite.envs.tasks`."""

from suite.envs.tasks import Task, find_task

__all__ = ["Task", "find_task"]
