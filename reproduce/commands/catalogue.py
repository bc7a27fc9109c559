"""`list`, `published`, `docs` and `site`: list agents and sources; draw grids, pages and site."""

import sys
from collections.abc import Sequence
from pathlib import Path

import agents
from reproduce import ROOT
from reproduce.commands import flags
from reproduce.plan.grid import PUBLISHED, presets_of
from reproduce.words import counted
from suite.command_line import say_todays_name
from suite.settings import UsageError
from suite.tasks import SUITES


def list_all(argv: Sequence[str]) -> int:
    """Print agents with suites and sources, suites with tasks, published results; or one source."""
    parser = flags.make_parser("list", "agents, suites, tasks, sources, published results")
    parser.add_argument("--like", metavar="SOURCE", help="print what this source set and measured")
    options = parser.parse(argv)
    if options.like is not None:
        from reproduce.extras.sources import describe_source

        name, text = describe_source(options.like)
        say_todays_name(options.like, name)
        print(text)
        return 0
    from reproduce.extras import control as controls

    for name in agents.AGENTS:
        print(f"agent {name}")
        try:
            presets = presets_of(name)
        except UsageError as error:
            print(f"  {error}")
            continue
        for suite in dict.fromkeys(suite for suite, _ in presets):
            sources = ", ".join(source for of, source in presets if of == suite)
            print(f"  {suite}: {sources}")
    for suite, tasks in SUITES.items():
        print(f"suite {suite} ({counted(len(tasks), 'task')}): {' '.join(tasks)}")
    for peer in controls.peers():
        print(f"control {peer}: {', '.join(controls.agents_of(peer))}")
    for page in sorted(PUBLISHED.glob("*/*/verdicts.csv")):
        print(f"published {page.parent.relative_to(PUBLISHED)}: {page.parent}")
    return 0


def published(argv: Sequence[str]) -> int:
    """Draw every published folder again, or say which tables are out of date."""
    parser = flags.make_parser("published", "keep every published folder small and draw it again")
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    options = parser.parse(argv)
    from reproduce.extras.published import find_plans, refresh, stale_table

    stale = []
    for plan in find_plans(PUBLISHED):
        if not options.check:
            refresh(plan)
            print(plan.directory / "index.html")
        elif name := stale_table(plan):
            stale.append(str(plan.directory / name))
    if stale:
        print(f"out of date: {', '.join(stale)}: run `make published`", file=sys.stderr)
    return int(bool(stale))


def docs(argv: Sequence[str]) -> int:
    """Generate the blocks of README and documentation again, or say which are out of date."""
    parser = flags.make_parser("docs", "generate the blocks of README and documentation again")
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    options = parser.parse(argv)
    from reproduce.extras.docs.pages import stale_pages, write_pages

    if not options.check:
        for page in write_pages(ROOT):
            print(page)
    elif stale := stale_pages(ROOT):
        print(f"out of date: {', '.join(map(str, stale))}: run `make docs`", file=sys.stderr)
        return 1
    return 0


def site(argv: Sequence[str]) -> int:
    """Build the site over everything that is published, and over grids that are named."""
    parser = flags.make_parser("site", "build the site over everything that is published")
    parser.add_argument("--out", type=Path, default=Path("site"), metavar="DIR", help="its folder")
    parser.add_argument(
        "--runs-dir",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="DIR",
        help="show the grids of these folders beside what is published: before and after",
    )
    flags.add_open(parser)
    options = parser.parse(argv)
    from reproduce.extras.site.build import write_site

    page = write_site(options.out, options.runs_dir)
    print(page)
    flags.open_page(options, page)
    return 0
