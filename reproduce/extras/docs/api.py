"""Blocks on the public interface: signatures and docstrings, read from the source."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from reproduce import ROOT
from reproduce.extras.docs.markdown import table
from suite.settings import UsageError

Definition = ast.FunctionDef | ast.ClassDef
SECTIONS = ("Args", "Returns", "Raises")
ENTRY = re.compile(r"(\w[\w.]*): (.+)")


def describe(link: Any, name: str) -> str:
    """Return signature, text, arguments and members of a function or class.

    Raises:
        UsageError: if its file does not define it.
    """
    module, _, own = name.rpartition(".")
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = [node for node in ast.parse(text).body if isinstance(node, Definition)]
    node = next((node for node in found if node.name == own), None)
    if node is None:
        raise UsageError(f"{module or 'the project'} has no {own}")
    file = path.relative_to(ROOT).as_posix()
    lines = text.splitlines()
    parts = [f"In [{file}]({link(file)}):", f"```python\n{_signature(node, lines)}\n```"]
    parts += _docstring(ast.get_docstring(node) or "")
    if isinstance(node, ast.ClassDef):
        parts += _members(node)
    return "\n\n".join(parts)


def _signature(node: Definition, lines: list[str]) -> str:
    """Return a definition as it stands in the file, without decorators and body.

    A class is followed by its `__init__`.
    """
    text = _head(node, lines)
    if isinstance(node, ast.ClassDef):
        methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
        makes = [_head(part, lines) for part in methods if part.name == "__init__"]
        text = "\n".join([text, *makes])
    return text


def _head(node: Definition, lines: list[str]) -> str:
    """Return the lines from `def` or `class` to the colon."""
    return "\n".join(lines[node.lineno - 1 : node.body[0].lineno - 1]).rstrip()


def _docstring(text: str) -> Iterator[str]:
    """Yield the parts of a Google docstring in Markdown."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    for paragraph in paragraphs:
        title, _, body = paragraph.partition(":\n")
        if title not in SECTIONS:
            yield paragraph
            continue
        entries = re.split(r"\n(?! )", textwrap.dedent(body))
        joined = [" ".join(entry.split()) for entry in entries]
        if title == "Returns":
            words = " ".join(joined)
            yield f"Returns {words[:1].lower()}{words[1:]}"
            continue
        rows = [ENTRY.fullmatch(entry) for entry in joined]
        if not all(rows):
            yield f"{title}: {' '.join(joined)}"
        elif title == "Args":
            cells = ((f"`{row[1]}`", row[2]) for row in rows if row)
            yield table(("argument", "meaning"), cells)
        else:
            errors = (f"`{row[1]}` {row[2].rstrip('.')}" for row in rows if row)
            yield f"Raises {'; '.join(errors)}."


def _members(node: ast.ClassDef) -> Iterator[str]:
    """Yield tables of a class's documented fields and of its public methods."""
    fields, methods = [], []
    for part, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                meaning = " ".join(str(following.value.value).split())
                fields.append((f"`{part.target.id}`", meaning))
        elif isinstance(part, ast.FunctionDef) and part.name[:1] != "_":
            first = (ast.get_docstring(part) or "").partition("\n\n")[0]
            arguments = ", ".join(argument.arg for argument in part.args.args[1:])
            called = "" if part.decorator_list else f"({arguments})"
            methods.append((f"`{part.name}{called}`", " ".join(first.split())))
    if fields:
        yield table(("field", "meaning"), fields)
    if methods:
        yield table(("method", "meaning"), methods)
