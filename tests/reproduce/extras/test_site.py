"""The site: every link leads somewhere, every grid is reached, and nothing else is replaced."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from reproduce.extras.site import build
from reproduce.extras.site.build import write_site
from reproduce.extras.site.documents import render
from suite.settings import UsageError
from tests.reproduce.report.grids import HOSTILE, write_grid

TASK = "HalfCheetah-v4"


class Page(HTMLParser):
    """Addresses and identifiers of a page, and the elements in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.tags: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        self.tags.append(tag)
        self.links += [said[name] or "" for name in ("href", "src") if name in said]
        self.names.add(said.get("id") or "")


@pytest.fixture
def project(tmp_path: Path, published: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two documents, a file of code, two grids of one task, and one of another."""
    root = tmp_path / "project"
    monkeypatch.setattr(build, "ROOT", root)
    (root / "docs" / "agents").mkdir(parents=True)
    (root / "agents").mkdir()
    (root / "agents" / "sac.py").write_text('"""<b>Code</b>."""\n')
    (root / "README.md").write_text(
        "# Project\n\nSee [sac](docs/agents/sac.md#the-idea), [code](agents/sac.py), "
        "[grid](results/published/sac-mujoco/paper), [a run](results/published/sac-mujoco/paper/"
        "HalfCheetah-v4/seed-1), [a table](results/published/sac-mujoco/paper/scores.csv).\n"
    )
    (root / "docs" / "agents" / "sac.md").write_text(
        "# `sac`\n\nBack [there](../../README.md).\n\n## The idea\n\n| a | b |\n|---|--:|\n"
        "| 1<br>2 | <i>3</i> |\n"
    )
    references = tmp_path / "references"
    for name in ("jaxrl/sac.toml", "paper/sac.toml", "paper/impala.toml"):
        (references / name).parent.mkdir(parents=True, exist_ok=True)
        (references / name).touch()
    monkeypatch.setattr(build, "REFERENCES", references)
    write_grid(published / "sac-mujoco" / "paper", TASK)
    write_grid(published / "sac-mujoco" / "jaxrl", TASK, "Hopper-v4")
    write_grid(published / "a2c-classic" / "rl_zoo", "CartPole-v1", text=HOSTILE)
    return root


def check_links(site: Path) -> None:
    """Every address of every page is a file of the site, and its part is there."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for link in page.links:
            if not re.match("https?:|data:", link):
                place, _, part = link.partition("#")
                target = (path.parent / unquote(place)).resolve() if place else path
                target = target / "index.html" if target.is_dir() else target
                assert target.is_relative_to(site.resolve()), f"{path}: {link}"
                assert target.is_file(), f"{path}: {link}"
                assert not part or part in pages[target].names, f"{path}: {link}"


def test_every_page_is_reached_and_every_link_leads_somewhere(
    project: Path, tmp_path: Path
) -> None:
    """Grids, tasks, sources, documents and the files that they name, from the start page on."""
    start = write_site(tmp_path / "site")
    check_links(start.parent)
    reached, new = set(), [start.resolve()]
    while new:
        path = new.pop()
        reached.add(path)
        for link in Page(path).links if path.suffix == ".html" else ():
            if not re.match("https?:|data:", link):
                target = (path.parent / unquote(link.partition("#")[0] or path.name)).resolve()
                new += [target] if target not in reached else []
    assert reached >= {path.resolve() for path in start.parent.rglob("*.html")}
    places = {path.relative_to(start.parent.resolve()).as_posix() for path in reached}
    assert places >= {
        "grids/sac-mujoco/paper/index.html",
        "grids/sac-mujoco/paper/scores.csv",
        "tasks/HalfCheetah-v4.html",
        "sources/jaxrl.html",
        "files/agents/sac.py.html",
    }


def test_grids_of_one_task_share_a_plot_before_and_after(
    project: Path, published: Path, tmp_path: Path
) -> None:
    """By source, and by the folder that a second version of a grid was run in."""
    write_grid(tmp_path / "after" / "sac-mujoco" / "paper", TASK)
    start = write_site(tmp_path / "site", [tmp_path / "after"])
    check_links(start.parent)
    text = (start.parent / "tasks" / "HalfCheetah-v4.html").read_text()
    for label in ("sac, the paper", "sac, jaxrl", f"sac, the paper, in {tmp_path / 'after'}"):
        assert f'"name":"{label}"'.replace("/", "\\u002f") in text
    assert text.count('class="chart"') == 1
    with pytest.raises(UsageError, match="holds no grid with a page"):
        write_site(tmp_path / "site", [tmp_path])


def test_the_table_holds_every_result_and_the_cost(project: Path, tmp_path: Path) -> None:
    """Scores, verdicts and core-hours stand in the page itself: a script only sorts and hides."""
    text = write_site(tmp_path / "site").read_text()
    body = re.search(r'id="everything".*?</table>', text, re.DOTALL)
    assert body is not None
    assert body[0].count("<tr") == 1 + 4
    assert body[0].count("75 ± 35 (2)") == 4
    assert '<td class="number">0.1</td></tr></tfoot>' in text  # 9 runs of 36 s on one core


def test_only_a_site_is_replaced(project: Path, tmp_path: Path) -> None:
    """A folder with anything else in it is left alone; a page that is gone leaves the site."""
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter").touch()
    with pytest.raises(UsageError, match="holds no site"):
        write_site(other)
    assert [path.name for path in other.iterdir()] == ["chapter"]
    site = write_site(tmp_path / "site").parent
    (site / "old.html").touch()
    write_site(site)
    assert not (site / "old.html").exists()


def test_a_link_to_nothing_is_refused(project: Path, tmp_path: Path) -> None:
    """The document and the missing file are named."""
    (project / "docs" / "b.md").write_text("[x](../agents/none.py)")
    with pytest.raises(UsageError, match=r"docs/b: links to agents/none\.py, which is no file"):
        write_site(tmp_path / "site")


def test_a_document_lets_no_markup_through() -> None:
    """Line breaks apart, HTML in a document is text, and no link runs a script."""
    text = f"# T\n\na<br>b <b>c</b> [d](javascript:alert(1)) <!-- e -->\n\n<div>{HOSTILE}</div>\n"
    body = render(text, "a.md", lambda path: path).body
    assert set(re.findall(r"<(\w+)", body)) == {"h1", "p", "br"}
