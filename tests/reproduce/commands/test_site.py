"""The site: pages from all over a project, their links, and its grids, without a network."""

import re
from pathlib import Path

import pytest
from mkdocs.exceptions import Abort

from reproduce import ROOT
from tests.reproduce.report.grids import HOSTILE, Page, write_grid
from tests.sites import build_site, write_project

pytestmark = pytest.mark.long

PAGES = (
    *("index.html", "agents/sac.html", "files/agents/sac.py.html", "references/jaxrl.html"),
    *(f"results/published/sac-mujoco/paper/{name}" for name in ("index.html", "scores.csv")),
)
"""What README names, and where it stands on the site."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of a project with three pages and two grids."""
    project = write_project(tmp_path_factory.mktemp("project"))
    write_grid(project / "results/published/sac-mujoco/paper", "HalfCheetah-v4")
    write_grid(project / "results/published/a2c-classic/rl_zoo", "CartPole-v1", text=HOSTILE)
    return build_site(project)


def test_every_link_leads_to_what_it_names(site: Path) -> None:
    """A page, a grid, a run of it, its table, a source, and code, as they lie in the project."""
    assert [place for place in PAGES if not (site / place).is_file()] == []
    for path in set(site.rglob("*.html")) - {site / "404.html"}:  # a server's: from its root
        for link in Page(path).links:
            place, _, part = link.partition("#")
            if place and not re.match("https?:", place):
                target = path.parent / place
                assert target.is_file() or (target / "index.html").is_file(), f"{path}: {link}"
            if part:
                shown = (path.parent / place if place else path).read_text()
                assert f'id="{part}"' in shown or part == "__skip", f"{path}: {link}"
    grids = [link for link in Page(site / "index.html").links if "sac-mujoco" in link]
    folder = "results/published/sac-mujoco/paper"
    assert grids == [f"{folder}/index.html", f"{folder}/index.html", f"{folder}/scores.csv"]


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    """Neither in its elements nor by its style; an agent's page has its table, its code is text."""
    assert "hooks: [docs/hooks.py]" in (ROOT / "mkdocs.yml").read_text()
    assert "gradient step" in (site / "agents/sac.html").read_text()
    assert "&lt;b&gt;Code&lt;/b&gt;" in (site / "files/agents/sac.py.html").read_text()
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for path in pages:
        assert not [a for a in Page(path).loaded if re.match("(https?:)?//", a)], path
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", path.read_text()), path


def test_a_link_to_nothing_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file and a heading that are not there: page and target are named."""
    project = write_project(tmp_path)
    (project / "docs" / "b.md").write_text("[x](../agents/none.py) [y](agents/sac.md#nothing)")
    with pytest.raises(Abort):
        build_site(project)
    assert "'b.md' contains a link 'agents/none.py'" in caplog.text
    assert "the doc 'agents/sac.md' does not contain an anchor '#nothing'" in caplog.text
