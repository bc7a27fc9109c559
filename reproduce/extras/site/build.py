"""`site`: a start page over all grids, pages of tasks, sources and documents, the grids' own."""

import posixpath
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import markupsafe
import pandas as pd

from reproduce import ROOT
from reproduce.extras.docs.results import Cell, by_task, cells
from reproduce.extras.site.documents import Document, render
from reproduce.extras.sources import describe_source
from reproduce.gather.references import credits_of, name_of, sources
from reproduce.plan import grid as planning
from reproduce.plan.places import check_writable
from reproduce.report.page import ASSETS, TEMPLATES, environment, learning_curves, style
from reproduce.report.page import render as render_grid
from reproduce.report.tables import read_report, read_table
from reproduce.report.words import VERDICTS
from suite.files import read_whole
from suite.presets import REFERENCES
from suite.settings import UsageError

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/agents/*.md", "results/**/*.md")
MARK = "assets/site.js"
"""File that marks a folder as a site, which may be replaced."""
TABLES = (".csv", ".json", ".svg", ".png", ".pdf")
"""Endings of a grid's files that are shown on the site."""
LARGEST_FILE = 2**20
"""Bytes of a file of the project that the site shows: 1 MiB."""


@dataclass(frozen=True)
class Grid:
    """A grid with a page on the site."""

    directory: Path
    place: str
    """Its folder on the site."""
    remark: str
    """Where it lies, unless it is published."""
    cells: tuple[Cell, ...]

    @property
    def agent(self) -> str:
        """Return the agent's name."""
        return self.cells[0].agent

    @property
    def source(self) -> str:
        """Return the common name of its settings' source."""
        return name_of(self.cells[0].source)

    @property
    def label(self) -> str:
        """Return the legend's label."""
        where = f", in {self.remark}" if self.remark else ""
        return f"{self.agent}, {self.source}{where}"


def write_site(out: Path, roots: Sequence[Path] = ()) -> Path:
    """Write the site and return its start page.

    Args:
        out: its folder; a site that is there is replaced.
        roots: runs directories whose grids it shows beside what is published.

    Raises:
        UsageError: if the folder holds something else or cannot be written, a runs directory holds
            no grid, or a page links to a file that does not exist.
    """
    check_writable(out, "--out")
    if out.exists() and not (out.is_dir() and (not any(out.iterdir()) or (out / MARK).exists())):
        raise UsageError(f"{out} holds no site: choose another --out, or delete it")
    grids = list(_grids(planning.PUBLISHED, "grids", ""))
    for place, root in enumerate(roots, 1):
        found = list(_grids(root, f"runs-{place}", str(root)))
        if not found:
            raise UsageError(f"{root} holds no grid with a page (<agent>-<suite>/<source>)")
        grids += found
    if out.exists():
        shutil.rmtree(out)
    site = _Site(out, grids)
    site.write_assets()
    for grid in grids:
        site.write_grid(grid)
    site.write_results()
    site.write_sources()
    site.write_documents()
    return out / "index.html"


def _grids(root: Path, place: str, remark: str) -> Iterator[Grid]:
    """Yield the grids of a runs directory that have a page."""
    every = cells(root)
    for directory in dict.fromkeys(cell.directory for cell in every):
        own = tuple(cell for cell in every if cell.directory == directory)
        folder = f"{place}/{own[0].agent}-{own[0].suite}/{own[0].source}"
        if (directory / "report.json").exists():
            yield Grid(directory, folder, remark, own)


class _Site:
    """Writes pages whose links are relative: the site works from any folder and any server."""

    def __init__(self, out: Path, grids: Sequence[Grid]) -> None:
        self._out, self._grids = out, grids
        self._documents = {
            path.relative_to(ROOT).as_posix(): path
            for pattern in DOCUMENTS
            for path in sorted(ROOT.glob(pattern))
            if not path.is_relative_to(planning.PUBLISHED)
        }
        menu = {"index.html": "Results", "sources/index.html": "References"}
        menu |= {"docs/controls.html": "Controls"} if "docs/controls.md" in self._documents else {}
        menu |= {"docs/index.html": "Documentation"} if self._documents else {}
        self._menu = menu

    def write_assets(self) -> None:
        """Write the shared style sheet and scripts."""
        own = {name: (TEMPLATES / name).read_text() for name in ("site.css", "site.js")}
        self._write("assets/style.css", f"{style()}\n{own['site.css']}")
        self._write("assets/site.js", own["site.js"])
        for name, read in ASSETS.items():
            self._write(f"assets/{name}", read())

    def write_grid(self, grid: Grid) -> None:
        """Write a grid's page, and beside it the files that it was made from."""
        folder = self._out / grid.place
        folder.mkdir(parents=True)
        for path in sorted(grid.directory.iterdir()):
            if path.suffix in TABLES and path.is_file() and not path.is_symlink():
                shutil.copyfile(path, folder / path.name)
        page = f"{grid.place}/index.html"
        home, assets = (_relative(place, page) for place in ("index.html", "assets"))
        self._write(page, render_grid(folder, assets=f"{assets}/", home=home))

    def write_results(self) -> None:
        """Write the start page and a page for each task."""
        every = [cell for grid in self._grids for cell in grid.cells]
        names, places = by_task(every)
        verdicts = [str(cell.row["verdict"]) for cell in every]
        known = dict.fromkeys([*VERDICTS, *verdicts])
        cost = {name: [cell for cell in every if cell.agent == name] for name in names}
        self._page(
            "index.html",
            "results",
            agents=names,
            matrix=places,
            cells=every,
            counts={verdict: n for verdict in known if (n := verdicts.count(verdict))},
            cost={name: _cost(own) for name, own in cost.items()},
            total=_cost(every),
        )
        for task, of_agents in places.items():
            own = [cell for found in of_agents.values() for cell in found]
            self._page(
                self._task_page(task),
                "task",
                task=task,
                cells=own,
                charts=list(self._charts(task)),
                draws=True,
            )

    def write_sources(self) -> None:
        """Write a page for each source, and one that lists them."""
        rows = []
        for name in sorted({path.parent.name for path in REFERENCES.glob("*/*.toml")}):
            agents = [path.stem for path in sorted((REFERENCES / name).glob("*.toml"))]
            known = {agent: credits_of(agent, [name])[name] for agent in agents}
            held = [one for agent in agents for one in sources(agent) if one.source == name]
            row = {
                "folder": name,
                "name": known[agents[0]]["name"],
                "licence": next(filter(None, (said["licence"] for said in known.values())), ""),
                "agents": agents,
                "titles": list(dict.fromkeys(said["title"] for said in known.values())),
                "links": _links(known),
                "judges": any(one.judges for one in held),
                "num_runs": max((one.num_runs for one in held), default=0),
            }
            rows.append(row)
            text = describe_source(name)[1]
            self._page(f"sources/{name}.html", "source", source=row, text=text)
        self._page("sources/index.html", "sources", sources=rows)

    def write_documents(self) -> None:
        """Write every Markdown page, the files that they link to, and a list of them."""
        entries: dict[str, Document] = {}
        for path, file in self._documents.items():
            page = _html(path)
            text = file.read_text(encoding="utf-8")
            document = render(text, path, lambda target, page=page: self._resolve(target, page))
            entries[page] = document
            body = markupsafe.Markup(document.body)
            self._page(page, "document", title=document.title, body=body)
        if entries:
            self._page("docs/index.html", "documents", entries=entries)

    def _resolve(self, target: str, page: str) -> str:
        """Return the address, from a page, of what shows a file or folder of the project.

        Raises:
            UsageError: if there is no such file.
        """
        if target in self._documents:
            return _relative(_html(target), page)
        for grid in self._grids:
            folder = grid.cells[0].folder
            if not grid.remark and (target == folder or target.startswith(f"{folder}/")):
                shown = grid.place + target.removeprefix(folder)
                own = shown if (self._out / shown).is_file() else f"{grid.place}/index.html"
                return _relative(own, page)
        file = ROOT / target
        if not file.is_file() or not file.resolve().is_relative_to(ROOT):
            raise UsageError(f"{page.removesuffix('.html')}: links to {target}, which is no file")
        shown = f"files/{target}.html"
        if not (self._out / shown).exists():
            text = read_whole(file, LARGEST_FILE).decode(errors="replace")
            self._page(shown, "file", path=target, text=text)
        return _relative(shown, page)

    def _charts(self, task: str) -> Iterator[tuple[str, markupsafe.Markup]]:
        """Yield rules, with protocols, and the learning curves of a task that belong together."""
        alike: dict[tuple[str, str], list[Grid]] = {}
        for grid in self._grids:
            rows = [cell.row for cell in grid.cells if cell.row["task"] == task]
            for row in rows:
                protocol = str(read_report(grid.directory).get("protocol", ""))
                alike.setdefault((str(row["rule"]), protocol), []).append(grid)
        for (rule, protocol), grids in alike.items():
            words = ", ".join(filter(None, (f"evaluation rule: {rule}", protocol)))
            yield words, _chart(task, grids)

    def _task_page(self, task: str) -> str:
        name = re.sub(r"[^\w.-]", "_", task)
        unsafe = name != task or name.startswith(".")
        return (
            f"tasks/{name}-{zlib.crc32(task.encode()):08x}.html" if unsafe else f"tasks/{name}.html"
        )

    def _page(self, page: str, template: str, *, draws: bool = False, **content: Any) -> None:
        """Write a page; `to` gives it addresses of others."""
        scripts = [*(ASSETS if draws else ["page.js"]), "site.js"]
        places = {grid.directory: f"{grid.place}/index.html" for grid in self._grids}
        remarks = {grid.directory: grid.remark for grid in self._grids}
        text = (
            environment()
            .get_template(f"site/{template}.html.j2")
            .render(
                page=page,
                menu=self._menu,
                documents=self._documents,
                scripts=[f"assets/{name}" for name in scripts],
                to=lambda other: _relative(other, page),
                to_grid=lambda cell: _relative(places[cell.directory], page),
                to_task=lambda task: _relative(self._task_page(task), page),
                to_agent=lambda name: self._agent_page(name, page),
                remark_of=lambda cell: remarks[cell.directory],
                source_name=lambda cell: name_of(cell.source),
                **content,
            )
        )
        self._write(page, text)

    def _agent_page(self, name: str, page: str) -> str:
        """Return the address of an agent's page; empty without one."""
        path = f"docs/agents/{name}.md"
        return _relative(_html(path), page) if path in self._documents else ""

    def _write(self, page: str, text: str) -> None:
        path = self._out / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode(errors="replace"))


def _chart(task: str, grids: Sequence[Grid]) -> markupsafe.Markup:
    """Return the learning curves of one task in several grids, and what was published on it."""
    several = len({grid.agent for grid in grids}) > 1
    curves: dict[str, pd.DataFrame] = {}
    references: list[pd.DataFrame] = []
    credits: dict[str, Mapping[str, str]] = {}
    for grid in grids:
        ours = read_table(grid.directory, "curves")
        curves[grid.label] = ours[ours["task"] == task]
        theirs = read_table(grid.directory, "reference_curves")
        theirs = theirs[theirs["task"] == task]
        known = credits_of(grid.agent, theirs["source"].unique())
        if several:  # two agents of one source are two sources here
            known = {
                f"{source} {grid.agent}": said | {"name": f"{said['name']}: {grid.agent}"}
                for source, said in known.items()
            }
            theirs = theirs.assign(source=theirs["source"] + f" {grid.agent}")
        credits |= known
        references.append(theirs)
    published = pd.concat(references, ignore_index=True)
    return learning_curves(curves, published, [{"task": task, "env_steps": 0}], credits)


def _links(known: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return where to read on, by words; by agent, too, where these differ."""
    links = {}
    for words in ("paper", "code"):
        addresses = {agent: said[words] for agent, said in known.items() if said[words]}
        several = len(set(addresses.values())) > 1
        for agent, address in addresses.items():
            links[f"{words} ({agent})" if several else words] = address
    return links


def _cost(own: Sequence[Cell]) -> dict[str, int | float]:
    """Return what cells took: grids, runs that count, core-hours."""
    return {
        "grids": len({cell.directory for cell in own}),
        "runs": sum(int(cell.row["num_seeds"] or 0) for cell in own),
        "core_hours": sum(cell.core_hours for cell in own),
    }


def _html(path: str) -> str:
    """Return the page that shows a Markdown page."""
    return f"{path.removesuffix('.md')}.html"


def _relative(target: str, page: str) -> str:
    """Return the address of a page of the site from another."""
    return quote(posixpath.relpath(target, posixpath.dirname(page) or "."))
