"""Sites of small projects, built by the project's own configuration of mkdocs."""

from pathlib import Path
from typing import Any

from mkdocs.commands.build import build
from mkdocs.config import load_config

from reproduce import ROOT

README = """# Project

See [sac](docs/agents/sac.md#from-equation-to-function), [code](agents/sac.py),
[grid](results/published/sac-mujoco/paper),
[a run](results/published/sac-mujoco/paper/HalfCheetah-v4/seed-1),
[a table](results/published/sac-mujoco/paper/scores.csv) and [a source](results/references/jaxrl).
"""
AGENT = """# `sac`

Back [there](../../README.md).

## From equation to function

[Equations](../../agents/sac.py "equations sac")
"""


def write_project(root: Path, agent: str = AGENT) -> Path:
    """Write a README, an agent's page and its file, a source; return the project's folder."""
    for place, text in (
        ("README.md", README),
        ("docs/agents/sac.md", agent),
        ("docs/wide.css", ""),
        ("results/README.md", "# Results\n"),
        ("agents/sac.py", '"""<b>Code</b>."""\n'),
        ("results/references/jaxrl/sac.toml", ""),
    ):
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def build_site(project: Path) -> Path:
    """Build the site of a project, strictly, and return its folder."""
    config = load_config(
        str(ROOT / "mkdocs.yml"),
        **{"docs_dir": str(project / "docs"), "site_dir": str(project / "site"), "strict": True},
    )
    config.nav = None
    hooks: Any = config.hooks
    (hook,) = hooks.values()
    hook.ROOT, hook.REFERENCES = project, project / "results" / "references"
    hook.MOVED = {"README.md": "index.md", "results/README.md": "results/index.md"}
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    return project / "site"
