"""Markdown pages as HTML: links between files of the project become links between pages."""

import itertools
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

Resolve = Callable[[str], str]
"""Maps a path from the project's folder to an address from the page that has the link."""


@dataclass(frozen=True)
class Document:
    """A Markdown page."""

    title: str
    summary: str
    """Its first paragraph, as text."""
    body: str
    """HTML."""


def render(text: str, path: str, resolve: Resolve) -> Document:
    """Return a Markdown page as HTML.

    Headings get the identifiers that GitHub gives them. Of HTML in the page, line breaks are kept,
    comments are left out, and all else is shown as text.

    Args:
        text: the page.
        path: its place, from the project's folder.
        resolve: called with the path of every file that is linked or shown.
    """
    parser = MarkdownIt("commonmark", renderer_cls=_Renderer).enable("table")
    tokens = parser.parse(text)
    folder, used = posixpath.dirname(path), dict[str, int]()
    title = summary = ""
    for token, inner in itertools.pairwise(tokens):
        words = _text(inner.children or ())
        if token.type == "heading_open":
            token.attrSet("id", _anchor(words, used))
            title = title or words
        elif token.type == "paragraph_open" and title:
            summary = summary or words
    for child in (child for token in tokens for child in token.children or ()):
        for name in ("href", "src"):
            address = child.attrGet(name)
            if isinstance(address, str) and not re.match(r"[a-z]+:|#", address):
                place, hash_, part = address.partition("#")
                target = posixpath.normpath(posixpath.join(folder, unquote(place)))
                child.attrSet(name, resolve(target) + hash_ + part)
    return Document(title or path, summary, parser.renderer.render(tokens, parser.options, {}))


class _Renderer(RendererHTML):
    """Lets no HTML through but line breaks; a table scrolls by itself where it is too wide."""

    def html_inline(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
    ) -> str:
        """Return a piece of HTML in a line."""
        content = tokens[idx].content
        if re.fullmatch(r"<br\s*/?>", content):
            return "<br>"
        return "" if content.startswith("<!--") else self.text(tokens, idx, options, env)

    def html_block(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
    ) -> str:
        """Return HTML that stands alone."""
        return self.html_inline(tokens, idx, options, env)

    def table_open(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
    ) -> str:
        """Return the beginning of a table."""
        return '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table>\n'

    def table_close(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
    ) -> str:
        """Return the end of a table."""
        return "</table></div>\n"


def _text(tokens: Sequence[Token]) -> str:
    """Return what a reader sees of a line."""
    kinds = ("text", "code_inline")
    words = (" " if t.type == "softbreak" else t.content * (t.type in kinds) for t in tokens)
    return "".join(words)


def _anchor(words: str, used: dict[str, int]) -> str:
    """Return a heading's identifier, as GitHub makes it."""
    name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
    used[name] = used.get(name, -1) + 1
    return f"{name}-{used[name]}" if used[name] else name
