"""Declared seeds: those by which a task is judged, fixed before it is trained.

Adding seeds until a verdict appears finds one too often. So a plan declares a task's seeds when it
is first started, in `plan.json`. A verdict on more seeds is exploratory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reproduce.plan.request import SAVED, refuse_many
from reproduce.plan.status import seeds_begun
from reproduce.words import counted
from suite.base.errors import UsageError
from suite.base.files import read_json
from suite.settings.recorded import todays_agent

if TYPE_CHECKING:
    from reproduce.plan.grid import Plan

PLAN = "plan.json"
MIN_SEEDS = 3
"""Smallest number of seeds that is tested."""
Declared = dict[tuple[str, int], tuple[int, ...]]
"""Declared seeds by task and environment steps, in the order in which they were asked for."""


def keep_declared(plan: "Plan", *, counts_begun: bool = False, own_first: bool = False) -> "Plan":
    """Return the plan with the seeds that were declared when its tasks were first started.

    Where published runs count, the seeds that were declared for them hold: their scores are known.

    Args:
        plan: what is asked for now.
        counts_begun: whether each task also runs the seeds that it was declared, or begun, with.
        own_first: whether what its own folder declares holds before what is published.

    Raises:
        UsageError: if it drops a declared seed, or picks some of those that were begun.
    """
    own, published = declared_in(read_plan(plan.directory / PLAN)), _of_published_runs(plan)
    before = published | own if own_first else own | published
    if counts_begun:
        plan = _with_begun(plan, before)
    declared: dict[str, tuple[int, ...]] = {}
    for task, env_steps in plan.env_steps.items():
        key, seeds = (task, env_steps), plan.seeds[: plan.num_seeds[task]]
        declared[task] = before.get(key, seeds)
        if not set(declared[task]) <= set(seeds):
            go_on = f"--seeds {' '.join(map(str, declared[task]))}"
            number = counted(len(declared[task]), "declared seed")
            if key in published and not (own_first and key in own):
                raise UsageError(
                    f"{task} is published with {number}: take them with {go_on}, or train your own "
                    "with --no-published"
                )
            raise UsageError(
                f"{task} was started with {number}: go on with {go_on}, or start anew beside it "
                "with --fresh --no-published and other --seeds"
            )
        if key not in before and not counts_begun and len(seeds) >= MIN_SEEDS:
            _refuse_picking(plan, task, seeds)
    return replace(plan, declared=declared)


def _of_published_runs(plan: "Plan") -> Declared:
    """Return what is declared for the published runs that count for a plan."""
    folder = plan.published_folder
    published = declared_in(read_plan(folder / PLAN)) if plan.published else {}
    runs = plan.runs() if published else []
    taken = {run.task for run in runs if run.directory.is_relative_to(folder)}
    return {key: seeds for key, seeds in published.items() if key[0] in taken}


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
            ours = " ".join(map(str, (*plan.seeds, *sorted(others))))
            raise UsageError(
                f"{task} was begun with other seeds than the other tasks: start it by itself, with "
                f"--tasks {task} --seeds {ours}"
            )
    return replace(plan, seeds=seeds, num_seeds=num_seeds)


def _refuse_picking(plan: "Plan", task: str, seeds: Sequence[int]) -> None:
    """Refuse to declare some of the seeds that were begun without the others.

    Their scores may be guessed. Seeds of which none was begun are another experiment.
    """
    begun = seeds_begun(plan, task)
    others = sorted(begun - set(seeds))
    if others and begun & set(seeds):
        everything = " ".join(map(str, (*seeds, *others)))
        anew = "--fresh --no-published" if plan.published else "--fresh"
        raise UsageError(
            f"{task} was begun with seeds {' '.join(map(str, others))}, too, and a verdict leaves "
            f"none out: use --seeds {everything}, or start anew beside them with {anew} and other "
            "--seeds"
        )


def read_plan(path: Path) -> dict[str, Any] | None:
    """Return the content of a `plan.json`; None without that file.

    Raises:
        UsageError: if it cannot be read, is no plan, or one of too many seeds.
    """
    try:
        saved = read_json(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"unreadable {path}: {error}") from None
    except ValueError as error:
        is_empty = path.is_file() and not path.stat().st_size
        raise _unreadable(
            path, "the file is empty" if is_empty else f"not JSON ({error})"
        ) from None
    if not _is_plan(saved):
        raise _unreadable(path, "not the plan of a grid of runs")
    for seeds in (saved["seeds"], *(row["seeds"] for row in saved["declared"])):
        refuse_many(len(seeds), f"unreadable {path}")
    return saved | {"agent": todays_agent(saved["agent"])}


def declared_in(saved: Mapping[str, Any] | None) -> Declared:
    """Return the seeds that the content of a `plan.json` declares; none without that file."""
    rows = saved["declared"] if saved else ()
    return {(row["task"], row["env_steps"]): tuple(row["seeds"]) for row in rows}


def _unreadable(path: Path, why: str) -> UsageError:
    return UsageError(
        f"unreadable {path}: {why}; restore it, or remove it and run the grid again: finished runs "
        "are kept, the seeds that it declared are not"
    )


def _is_plan(saved: Any) -> bool:
    """Return whether a file's content has what `make.save_plan` writes."""
    if not isinstance(saved, dict) or not {*SAVED, "declared"} <= saved.keys():
        return False
    steps, seeds, changes, num_seeds, declared = (
        saved[name] for name in ("env_steps", "seeds", "settings", "num_seeds", "declared")
    )
    texts, switches = ("agent", "suite", "budget", "device"), ("drop_checkpoints", "keep_best")
    return (
        all(isinstance(value, dict) for value in (steps, changes, num_seeds))
        and isinstance(seeds, list)
        and list(num_seeds) == list(steps)
        and all(type(n) is int for n in (*num_seeds.values(), *steps.values(), *seeds))
        and all(0 < n <= len(seeds) for n in num_seeds.values())
        and all(n > 0 for n in steps.values())
        and type(saved["workers"]) is int
        and all(isinstance(text, str) for text in (*changes.values(), *map(saved.get, texts)))
        and all(isinstance(saved[key], bool) for key in ("published", *switches))
        and isinstance(saved["checkpoint_minutes"], (int, float, type(None)))
        and isinstance(saved.get("baseline"), (str, type(None)))
        and bool(steps and seeds)
        and isinstance(declared, list)
        and all(map(_is_declared, declared))
    )


def _is_declared(row: Any) -> bool:
    """Return whether a row of a file's `declared` names a task, its steps and distinct seeds."""
    if not isinstance(row, dict) or not isinstance(seeds := row.get("seeds"), list):
        return False
    is_whole = all(type(number) is int for number in (row.get("env_steps"), *seeds))
    return is_whole and isinstance(row.get("task"), str) and 0 < len(set(seeds)) == len(seeds)
