"""What `docs/api.md` promises of `suite.resume.checkpoint`."""

from suite.resume.checkpoint import Policy

__all__ = ["Policy"]
