"""`list`: agents, suites, sources, published results."""

from collections.abc import Sequence

import agents
from reproduce.commands import flags
from reproduce.controls import peer
from reproduce.gather import references
from reproduce.plan.presets import PUBLISHED, presets_of
from reproduce.words import counted
from suite.base.errors import UsageError, nearest
from suite.envs.tasks import SUITES
from suite.settings.presets import REFERENCES, read_source


def main(argv: Sequence[str]) -> int:
    """Print agents with sources, suites, published results; or one agent, suite or source.

    A source's files may be those of one agent: `list sac --like jaxrl`.
    """
    parser = flags.make_parser("list")
    parser.add_argument("name", nargs="?", help="an agent, or a suite, whose tasks are printed")
    parser.add_argument("--like", metavar="SOURCE", help="print what this source set and measured")
    options = parser.parse(argv)
    if options.like is not None:
        print(describe_source(options.like, options.name))
    elif options.name in SUITES:
        print("\n".join(SUITES[options.name]))
    else:
        print("\n".join(_summary(options.name)))
    return 0


def _summary(name: str | None) -> list[str]:
    """Return the lines of an agent, or of all agents and suites."""
    if name not in (None, *agents.AGENTS):
        known = nearest(name, (*agents.AGENTS, *SUITES))
        raise UsageError(f"unknown agent or suite {name!r}{known}")
    lines = []
    for agent in (name,) if name else agents.AGENTS:
        lines += [f"agent {agent}", *(f"  {line}" for line in _sources(agent))]
    for suite, tasks in () if name else SUITES.items():
        lines.append(f"suite {suite}: {counted(len(tasks), 'task')}")
    for each in peer.peers():
        if name in (None, *peer.agents_of(each)):
            lines.append(f"control {each}: {', '.join(peer.agents_of(each))}")
    grids = sorted(path.parent for path in PUBLISHED.glob(f"{name or '*'}-*/*/verdicts.csv"))
    return [*lines, *(f"published {grid.relative_to(PUBLISHED)}" for grid in grids)]


def _sources(agent: str) -> list[str]:
    """Return each suite of an agent with its sources, and who judges where the source does not.

    A file that is no agent yet gives what is wrong with it.
    """
    suites: dict[str, list[str]] = {}
    try:
        presets, measured = {**presets_of(agent)}, references.sources(agent)
    except UsageError as error:
        return [str(error)]
    for (suite, source), preset in presets.items():
        judge = f"judged by {preset.judged_by}" if preset.judged_by in measured else "not judged"
        said = source if judge == f"judged by {source}" else f"{source} ({judge})"
        suites.setdefault(suite, []).append(said)
    return [f"{suite}: {', '.join(names)}" for suite, names in suites.items()]


def describe_source(name: str, agent: str | None = None) -> str:
    """Return a source's file for each agent, or for one, and the tasks on which ours compares.

    A `UsageError` names the nearest source, or the first mistake in its files or tables.
    """
    folders = {path.parent.name for path in REFERENCES.glob("*/*.toml")}
    if name not in folders:
        raise UsageError(f"--like: unknown source {name!r}{nearest(name, folders)}")
    files = {path.stem: path for path in sorted((REFERENCES / name).glob("*.toml"))}
    if agent not in (None, *files):
        raise UsageError(f"{name} has nothing of {agent!r}{nearest(str(agent), files)}")
    lines = []
    for path in files.values() if agent is None else [files[agent]]:
        read_source(path)  # refuses mistakes
        lines += [f"# results/references/{name}/{path.name}", path.read_text("utf-8").strip(), ""]
        for row in references.coverage(path.stem, name).to_dict("records"):
            steps = f"{row['first_step']:,} to {row['last_step']:,} steps"
            protocol = f", {row['protocol']}" if row["protocol"] else ""
            runs = counted(row["num_runs"], "run")
            lines.append(f"# {row['task']}: {steps}, {runs}{protocol} ({row['env_id']})")
        lines.append("")
    return "\n".join(lines)
