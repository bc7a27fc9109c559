"""Hooks of mkdocs: pages from all over the project, their links, and the pages of grids.

A page links to files as they lie in the project. Here such a link leads to the page of a Markdown
file, to the page of a grid for anything in its folder, and to a page with the text of other files.
"""

import posixpath
import re
from pathlib import Path
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from agents import AGENTS
from reproduce import ROOT
from reproduce.commands.docs import fill
from reproduce.commands.list import describe_source
from reproduce.report.page import ASSETS, render
from suite.settings.presets import REFERENCES

MOVED = {
    **{"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"},
    **{"agents/README.md": "agents/index.md", "results/README.md": "results/index.md"},
    "results/references/README.md": "references/index.md",
}
"""Pages outside `docs/`, with their places on the site."""
ADDRESS = re.compile(r"""(\]\(|\b(?:src|srcset|href)=")(?![a-z]+:|#)([^)"\s#]+)""")
GRIDS = "results/published/*/*/report.json"
COPIED = (".csv", ".json", ".svg", ".png", ".pdf", ".gif", ".mp4", ".webm")
"""Files that are no pages; of a grid's folder they stand beside its page."""
WIDE = ("results/README.md",)
"""Of these, pages whose tables take the place of the list of headings, too."""
ASIDE = "---\nsearch:\n  exclude: true\nhide: [navigation]\n---\n"
"""Front matter of pages that only links lead to."""


def on_config(config: MkDocsConfig) -> None:
    """Put a page for each agent into the menu."""
    for section in config.nav or ():
        if "Agents" in section:
            section["Agents"] += [f"agents/{name}.md" for name in AGENTS]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside `docs/`, fill in the tables, and turn the links."""
    pages = {f"docs/{file.src_uri}": file for file in files.documentation_pages()}
    for path, place in MOVED.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        text = "---\nhide: [toc]\n---\n" * (path in WIDE) + text
        pages[path] = File.generated(config, place, content=text)
        files.append(pages[path])
    for folder in sorted(path.parent for path in ROOT.glob(GRIDS)):
        for path in sorted({folder / "index.html", *folder.iterdir()}):
            place = path.relative_to(ROOT).as_posix()
            if path.name == "index.html":  # written when all else is
                files.append(File.generated(config, place, content=""))
            elif path.suffix in COPIED:
                files.append(File.generated(config, place, abs_src_path=str(path)))
    for name in {path.parent.name for path in REFERENCES.glob("*/*.toml")}:
        text = f"{ASIDE}# {name}\n\n```toml\n{describe_source(name)}```\n"
        files.append(File.generated(config, f"references/{name}.md", content=text))
    for path, file in pages.items():
        text = ADDRESS.sub(
            lambda found, path=path, file=file: (
                found[1] + _resolve(unquote(found[2]), path, file, pages, files, config)
            ),
            fill(file.content_string),
        )
        file.content_string = text
    return files


def _resolve(
    target: str, path: str, page: File, pages: dict[str, File], files: Files, config: MkDocsConfig
) -> str:
    """Return the address, from a page, of what shows a file or folder of the project."""
    beside = posixpath.dirname(path)
    place = target[1:] if target[0] == "/" else posixpath.normpath(posixpath.join(beside, target))
    parts, source = place.split("/"), ROOT / place
    if place in pages:
        place = pages[place].src_uri
    elif parts[:2] == ["results", "references"] and len(parts) == 3 and source.is_dir():
        place = f"references/{parts[2]}.md"
    elif parts[:2] == ["results", "published"] and len(parts) > 3:
        place = place if files.get_file_from_path(place) else "/".join([*parts[:4], "index.html"])
    elif place.startswith("docs/"):
        place = place.removeprefix("docs/")
    elif source.suffix in COPIED and source.is_file():
        if not files.get_file_from_path(place):
            files.append(File.generated(config, place, abs_src_path=str(source)))
    elif source.exists():
        shown = f"files/{place}.md"
        if not files.get_file_from_path(shown):
            text = f"{ASIDE}# {place}\n\n{_content(source)}"
            files.append(File.generated(config, shown, content=text))
        place = shown
    return posixpath.relpath(place, posixpath.dirname(page.src_uri) or ".")


def _content(path: Path) -> str:
    """Return a file's text in a block, or a folder's names."""
    if path.is_dir():
        return "\n".join(f"- {each.name}" for each in sorted(path.iterdir()))
    language = path.suffix.removeprefix(".") or "text"
    return f"``````{language}\n{path.read_text(encoding='utf-8')}\n``````\n"


def on_post_build(config: MkDocsConfig) -> None:
    """Write the pages of grids, with the scripts that they share."""
    site = Path(config.site_dir)
    for name, read in ASSETS.items():
        (site / "assets" / name).write_text(read(), encoding="utf-8")
    for report in sorted(site.glob(GRIDS)):
        up = "../" * 4
        text = render(report.parent, assets=f"{up}assets/", home=f"{up}results/index.html")
        (report.parent / "index.html").write_bytes(text.encode(errors="replace"))
