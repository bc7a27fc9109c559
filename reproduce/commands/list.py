"""`list`: agents, suites, sources, published results."""

from collections.abc import Iterator, Sequence

import agents
from reproduce.commands import flags
from reproduce.controls import peer
from reproduce.gather.references import coverage
from reproduce.plan.grid import PUBLISHED
from reproduce.plan.presets import presets_of
from reproduce.words import counted
from suite.base.errors import UsageError, nearest
from suite.envs.tasks import SUITES
from suite.settings.presets import REFERENCES, read_source
from suite.settings.recorded import refuse_old_agent


def main(argv: Sequence[str]) -> int:
    """Print agents with sources, suites, published results; or one agent, suite or source."""
    parser = flags.make_parser("list", "agents, suites, sources, published results")
    parser.add_argument("name", nargs="?", help="an agent, or a suite, whose tasks are printed")
    parser.add_argument("--like", metavar="SOURCE", help="print what this source set and measured")
    options = parser.parse(argv)
    if options.like is not None:
        if options.name is not None:
            raise UsageError("list prints one name or one source: leave out either")
        print(describe_source(options.like))
        return 0
    if options.name in SUITES:
        print("\n".join(SUITES[options.name]))
        return 0
    if options.name not in (None, *agents.AGENTS):
        refuse_old_agent(options.name)
        known = nearest(options.name, (*agents.AGENTS, *SUITES))
        raise UsageError(f"unknown agent or suite {options.name!r}{known}")
    for name in agents.AGENTS if options.name is None else (options.name,):
        print("\n  ".join([f"agent {name}", *_sources(name)]))
    for suite, tasks in SUITES.items() if options.name is None else ():
        print(f"suite {suite}: {counted(len(tasks), 'task')}")
    for name in peer.peers():
        known = peer.agents_of(name)
        if options.name in (None, *known):
            print(f"control {name}: {', '.join(known)}")
    for page in sorted(PUBLISHED.glob(f"{options.name or '*'}-*/*/verdicts.csv")):
        print(f"published {page.parent.relative_to(PUBLISHED)}")
    return 0


def describe_source(name: str) -> str:
    """Return a source's file for each agent, and the tasks on which ours compares with it.

    Raises:
        UsageError: naming the nearest source, or the first mistake in its files or tables.
    """
    folders = {path.parent.name for path in REFERENCES.glob("*/*.toml")}
    if name not in folders:
        raise UsageError(f"--like: unknown source {name!r}{nearest(name, folders)}")
    lines = []
    for path in sorted((REFERENCES / name).glob("*.toml")):
        read_source(path)  # refuses mistakes
        lines += [f"# results/references/{name}/{path.name}", path.read_text("utf-8").strip(), ""]
        for row in coverage(path.stem, name).to_dict("records"):
            steps = f"{row['first_step']:,} to {row['last_step']:,} steps"
            protocol = f", {row['protocol']}" if row["protocol"] else ""
            runs = counted(row["num_runs"], "run")
            lines.append(f"# {row['task']}: {steps}, {runs}{protocol} ({row['env_id']})")
        lines.append("")
    return "\n".join(lines)


def _sources(agent: str) -> Iterator[str]:
    """Yield each of an agent's suites with its sources, and who judges where the source does not.

    A file that is no agent yet gives what is wrong with it.
    """
    try:
        presets = presets_of(agent)
    except UsageError as error:
        yield str(error)
        return
    for suite in dict.fromkeys(suite for suite, _ in presets):
        sources = {source: p.judged_by for (on, source), p in presets.items() if on == suite}
        judges = {name: f" (judged by {judge})" for name, judge in sources.items() if judge}
        names = (
            name if judge == name else name + judges.get(name, " (not judged)")
            for name, judge in sources.items()
        )
        yield f"{suite}: {', '.join(names)}"
