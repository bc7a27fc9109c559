"""Declared seeds: those by which a task is judged, fixed before it is trained.

Adding seeds until a verdict appears finds one too often. So a plan declares a task's seeds when it
is first started, in `plan.json`. A verdict on more seeds is exploratory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reproduce.plan.request import OPTIONAL, SAVED
from reproduce.plan.status import seeds_begun
from reproduce.words import counted
from suite.base.errors import UsageError
from suite.base.files import read_json

if TYPE_CHECKING:
    from reproduce.plan.grid import Plan

PLAN = "plan.json"
FRESH = "--fresh and other --seeds"
"""Flags that start a grid anew beside another."""
MIN_SEEDS = 3
"""Smallest number of seeds that is tested."""
Declared = dict[tuple[str, int], tuple[int, ...]]
"""Declared seeds by task and environment steps, in the order in which they were asked for."""


def keep_declared(plan: "Plan", *, counts_begun: bool = False) -> "Plan":
    """Return the plan with the seeds that were declared when its tasks were first started.

    With `counts_begun` a task also runs the seeds that it was declared, or begun, with. A plan that
    drops a declared seed, or picks some of those that were begun, is refused by a `UsageError`.
    """
    before = declared_in(read_plan(plan.directory / PLAN))
    if counts_begun:
        plan = _with_begun(plan, before)
    declared: dict[str, tuple[int, ...]] = {}
    for task, env_steps in plan.env_steps.items():
        key, seeds = (task, env_steps), plan.seeds[: plan.num_seeds[task]]
        declared[task] = before.get(key, seeds)
        if not set(declared[task]) <= set(seeds):
            raise UsageError(
                f"{task} was started with {counted(len(declared[task]), 'declared seed')}: go on "
                f"with --seeds {_words(declared[task])}, or start anew beside it with {FRESH}"
            )
        if key not in before and not counts_begun and len(seeds) >= MIN_SEEDS:
            _refuse_picking(plan, task, seeds)
    return replace(plan, declared=declared)


def _with_begun(plan: "Plan", declared: Declared) -> "Plan":
    """Return the plan with every task's other seeds, which it was declared or begun with."""
    asked, more = set(plan.seeds), dict[str, set[int]]()
    for key in plan.env_steps.items():
        begun = set(declared.get(key, ())) or seeds_begun(plan, key[0])
        more[key[0]] = begun - asked if begun & asked else set()
    seeds = (*plan.seeds, *sorted(set().union(*more.values())))
    num_seeds = {task: plan.num_seeds[task] + len(others) for task, others in more.items()}
    for task, others in more.items():
        if set(seeds[len(plan.seeds) : num_seeds[task]]) != others:
            raise UsageError(
                f"{task} was begun with other seeds than the other tasks: start it by itself, with "
                f"--tasks {task} --seeds {_words((*plan.seeds, *sorted(others)))}"
            )
    return replace(plan, seeds=seeds, num_seeds=num_seeds)


def _refuse_picking(plan: "Plan", task: str, seeds: Sequence[int]) -> None:
    """Refuse to declare some seeds that were begun without the others: they may be picked."""
    begun = seeds_begun(plan, task)
    others = sorted(begun - set(seeds))
    if others and begun & set(seeds):
        raise UsageError(
            f"{task} was begun with seeds {_words(others)}, too, and a verdict leaves none out: "
            f"use --seeds {_words((*seeds, *others))}, or start anew beside them with {FRESH}"
        )


def _words(seeds: Sequence[int]) -> str:
    return " ".join(map(str, seeds))


def read_plan(path: Path) -> dict[str, Any] | None:
    """Return the content of a `plan.json`, None without one; a `UsageError` if it is no plan."""
    anew = "restore it, or remove it and run the grid again: finished runs are kept"
    try:
        saved = read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"unreadable {path}: {error}; {anew}") from None
    if not _is_plan(saved):
        raise UsageError(f"unreadable {path}: not the plan of a grid of runs; {anew}")
    return saved


def declared_in(saved: Mapping[str, Any] | None) -> Declared:
    """Return the seeds that the content of a `plan.json` declares; none without that file."""
    rows = saved["declared"] if saved else ()
    return {(row["task"], row["env_steps"]): tuple(row["seeds"]) for row in rows}


def _is_plan(saved: Any) -> bool:
    """Return whether a file's content has what `make.save_plan` writes."""
    kinds = {**SAVED, "declared": list}
    if not isinstance(saved, dict) or not kinds.keys() <= saved.keys():
        return False
    if not all(isinstance(saved[name], kind) for name, kind in kinds.items()):
        return False
    steps, numbers, seeds = (saved[name] for name in ("env_steps", "num_seeds", "seeds"))
    counts = (*steps.values(), *numbers.values())
    return (
        all(isinstance(saved.get(name, ""), str) for name in (*OPTIONAL, "control"))
        and len(steps) > 0
        and list(numbers) == list(steps)
        and all(type(n) is int for n in (*seeds, *counts))
        and min(counts) > 0
        and max(numbers.values()) <= len(seeds)
        and all(isinstance(text, str) for text in saved["settings"].values())
        and all(map(_is_declared, saved["declared"]))
    )


def _is_declared(row: Any) -> bool:
    """Return whether a row of a file's `declared` names a task, its steps and distinct seeds."""
    match row:
        case {"task": str(), "env_steps": int(), "seeds": [_, *_] as seeds}:
            return all(type(seed) is int for seed in seeds) and len(set(seeds)) == len(seeds)
    return False
