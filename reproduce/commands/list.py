"""`list`: agents, suites, tasks, sources, published results."""

from collections.abc import Sequence

import agents
from reproduce.commands import flags
from reproduce.commands.sources import describe_source
from reproduce.controls import peer
from reproduce.plan.grid import PUBLISHED
from reproduce.plan.presets import check_agent, presets_of
from reproduce.words import counted
from suite.base.errors import UsageError
from suite.envs.tasks import SUITES
from suite.settings.command_line import say_todays_name


def main(argv: Sequence[str]) -> int:
    """Print agents with sources, suites with tasks, published results; or one agent or source."""
    parser = flags.make_parser("list", "agents, suites, tasks, sources, published results")
    parser.add_argument("agent", nargs="?", help="print this one's alone")
    parser.add_argument("--like", metavar="SOURCE", help="print what this source set and measured")
    options = parser.parse(argv)
    if options.agent is not None:
        check_agent(options.agent)
    if options.like is not None:
        if options.agent is not None:
            raise UsageError("list prints one agent or one source: leave out either")
        name, text = describe_source(options.like)
        say_todays_name(options.like, name)
        print(text)
        return 0
    for name in agents.AGENTS if options.agent is None else (options.agent,):
        print(f"agent {name}")
        try:
            presets = presets_of(name)
        except UsageError as error:
            print(f"  {error}")
            continue
        sources: dict[str, list[str]] = {}
        for (suite, source), preset in presets.items():
            sources.setdefault(suite, []).append(_with_judge(source, preset.judged_by))
        for suite, names in sources.items():
            print(f"  {suite}: {', '.join(names)}")
    for suite, tasks in SUITES.items() if options.agent is None else ():
        print(f"suite {suite} ({counted(len(tasks), 'task')}): {' '.join(tasks)}")
    for name in peer.peers():
        known = peer.agents_of(name)
        if options.agent in (None, *known):
            print(f"control {name}: {', '.join(known)}")
    for page in sorted(PUBLISHED.glob(f"{options.agent or '*'}-*/*/verdicts.csv")):
        print(f"published {page.parent.relative_to(PUBLISHED)}: {page.parent}")
    return 0


def _with_judge(source: str, judge: str | None) -> str:
    """Return a source's name, and who judges runs with its settings if it is not the source."""
    if judge == source:
        return source
    return f"{source} (judged by {judge})" if judge else f"{source} (not judged)"
