"""`--help` of an agent's command: its flags in three groups, with what the fields' texts say."""

import argparse
import ast
import dataclasses
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, get_args, get_origin, get_type_hints

RUN = ("task", "seeds", "env_steps", "protocol", "log_interval")
RUN += ("evaluation_rule", "evaluation_interval", "evaluation_episodes")
SPEED = ("device", "tf32", "bfloat16", "cuda_graphs", "num_threads", "env_threads")
SPEED += ("evaluate_beside",)
WIDTH = 100


def print_help(config: Any, prog: str, about: str, beside: Mapping[str, tuple[str, str]]) -> None:
    """Print what an agent's command takes.

    Args:
        config: the agent's settings, as they are without flags.
        prog: the program's name.
        about: what the help begins with.
        beside: flags of the run that are no settings: metavar (empty: a switch) and text.
    """
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog or 'command'} [flags]",
        description=about,
        formatter_class=partial(argparse.HelpFormatter, max_help_position=30, width=WIDTH),
    )
    groups = {title: parser.add_argument_group(title) for title in ("run", "algorithm", "speed")}
    hints, texts = get_type_hints(type(config)), _texts(type(config))
    for field in dataclasses.fields(config):
        group = "run" if field.name in RUN else "speed" if field.name in SPEED else "algorithm"
        value, hint = getattr(config, field.name), hints[field.name]
        words = " ".join(map(str, value)) if isinstance(value, tuple) else value
        how: dict[str, Any] = {"metavar": "VALUE"}
        if get_origin(hint) is Literal:
            how = {"metavar": f"{{{','.join(map(str, get_args(hint)))}}}"}
        elif isinstance(value, bool):
            how = {"action": argparse.BooleanOptionalAction, "default": argparse.SUPPRESS}
        text = f"{texts.get(field.name, '')} (default: {words})".replace("%", "%%")
        groups[group].add_argument(f"--{field.name.replace('_', '-')}", help=text, **how)
    for name, (metavar, text) in beside.items():
        how = {"metavar": metavar} if metavar else {"action": "store_true"}
        groups["run"].add_argument(name, help=text, **how)
    parser.print_help()


def _texts(config_class: type) -> dict[str, str]:
    """Return the text below each field of a configuration, those of its bases too."""
    found: dict[str, str] = {}
    for owner in reversed(config_class.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        (defined,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(defined, ast.ClassDef)
        for field, text in itertools.pairwise(defined.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                assert isinstance(field.target, ast.Name)
                found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found
