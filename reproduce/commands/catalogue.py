"""`list`, `published`, `docs` and `site`: list agents and sources; draw grids; documentation."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import agents
from reproduce import ROOT
from reproduce.commands import flags
from reproduce.plan.grid import PUBLISHED
from reproduce.plan.places import check_writable
from reproduce.plan.presets import check_agent, presets_of
from reproduce.words import counted
from suite.base.errors import UsageError
from suite.base.files import write_atomically
from suite.envs.tasks import SUITES
from suite.settings.command_line import say_todays_name


def list_all(argv: Sequence[str]) -> int:
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
        from reproduce.extras.sources import describe_source

        name, text = describe_source(options.like)
        say_todays_name(options.like, name)
        print(text)
        return 0
    from reproduce.extras import control as controls

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
    for peer in controls.peers():
        known = controls.agents_of(peer)
        if options.agent in (None, *known):
            print(f"control {peer}: {', '.join(known)}")
    for page in sorted(PUBLISHED.glob(f"{options.agent or '*'}-*/*/verdicts.csv")):
        print(f"published {page.parent.relative_to(PUBLISHED)}: {page.parent}")
    return 0


def _with_judge(source: str, judge: str | None) -> str:
    """Return a source's name, and who judges runs with its settings if it is not the source."""
    if judge == source:
        return source
    return f"{source} (judged by {judge})" if judge else f"{source} (not judged)"


def published(argv: Sequence[str]) -> int:
    """Draw every published folder again, or say which tables are out of date."""
    about = "keep every published folder small and draw it again"
    options = flags.make_parser("published", about, "--check").parse(argv)
    from reproduce.extras.published import find_plans, refresh, stale_table

    stale = []
    for plan in find_plans(PUBLISHED):
        if not options.check:
            refresh(plan)
            print(plan.directory / "index.html")
        elif name := stale_table(plan):
            stale.append(plan.directory / name)
    return _say_stale(stale, "published")


def docs(argv: Sequence[str]) -> int:
    """Write README's scores and figure anew, or say that the scores are out of date."""
    about = "write the scores and the figure of README.md anew"
    options = flags.make_parser("docs", about, "--check").parse(argv)
    from reproduce.extras.pages import draw_overview, with_scores

    path = ROOT / "README.md"
    before = path.read_text(encoding="utf-8")
    after = with_scores(before)
    if options.check:
        return _say_stale([path] if after != before else [], "docs")
    draw_overview(ROOT / "docs" / "images")
    if after != before:
        write_atomically(path, after.encode())
        print(path)
    return 0


def _say_stale(stale: Sequence[Path], target: str) -> int:
    """Name what is out of date, and return 1 if anything is."""
    if stale:
        names = ", ".join(map(str, stale))
        print(f"out of date: {names}: run `make {target}`", file=sys.stderr)
    return int(bool(stale))


def site(argv: Sequence[str]) -> int:
    """Build the documentation with all published grids; a broken link is an error."""
    about = "build the documentation, with all published grids"
    parser = flags.make_parser("site", about, "--open")
    parser.add_argument("--out", type=Path, default=Path("site"), metavar="DIR", help="its folder")
    options = parser.parse(argv)
    check_writable(options.out, "--out")
    page = options.out / "index.html"
    if not (ROOT / "mkdocs.yml").exists():
        raise UsageError("the documentation is built in a clone of the project, with `make site`")
    marks = (page, options.out / "search")  # else what lies there is somebody's own
    if options.out.exists() and any(options.out.iterdir()) and not all(m.exists() for m in marks):
        raise UsageError(f"{options.out} holds no site: choose another --out, or delete it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir"]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # of the theme, on other programs
    if subprocess.run([*command, str(options.out.absolute())], cwd=ROOT, env=quiet).returncode:
        raise UsageError("the documentation was not built: the lines above say why")
    print(page)
    if options.open:
        flags.open_page(page)
    return 0
