"""Declared seeds: those by which a task is judged, fixed before it is trained.

Adding seeds until a verdict appears finds one too often. So a plan declares a task's seeds when it
is first started, in `plan.json`. A verdict on more seeds is exploratory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reproduce.plan.status import seeds_begun
from reproduce.words import counted
from suite.base.errors import UsageError
from suite.base.files import read_json

if TYPE_CHECKING:
    from reproduce.plan.grid import Plan

MIN_SEEDS = 3
"""Smallest number of seeds that is tested."""
MOST_SEEDS = 10_000
"""Largest number of seeds of a plan."""
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
    own, published = read_declared(plan.directory / "plan.json"), _of_published_runs(plan)
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
    published = read_declared(folder / "plan.json") if plan.published else {}
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


def refuse_many(num_seeds: int, where: str) -> None:
    """Refuse a plan that would take minutes to make.

    Raises:
        UsageError: naming the limit.
    """
    if num_seeds > MOST_SEEDS:
        raise UsageError(f"{where}: a plan has at most {MOST_SEEDS:,} seeds, not {num_seeds:,}")


def read_saved(path: Path) -> Any:
    """Return the content of a `plan.json`.

    Raises:
        FileNotFoundError: if it is absent.
        UsageError: if it cannot be read.
    """
    try:
        return read_json(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise unreadable_plan(path, error) from None


def read_declared(path: Path) -> Declared:
    """Return the seeds that a folder's `plan.json` declares; empty without that file.

    Raises:
        UsageError: if it cannot be read as a plan, or one of too many seeds.
    """
    try:
        declared = from_json(read_saved(path))
    except FileNotFoundError:
        return {}
    except UsageError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError):
        raise unreadable_plan(path) from None
    refuse_many(max(map(len, declared.values()), default=0), str(path))
    return declared


def unreadable_plan(path: Path, error: Exception | None = None) -> UsageError:
    """Return the refusal of a `plan.json` that cannot be read: its name, the reason, the way on.

    Args:
        path: the file.
        error: what reading it said; None: it is readable, but no plan.
    """
    if isinstance(error, OSError):
        return UsageError(f"unreadable {path}: {error}")
    why = f"not JSON ({error})" if error else "not the plan of a grid of runs"
    if error and path.is_file() and not path.stat().st_size:
        why = "the file is empty"
    return UsageError(
        f"unreadable {path}: {why}; restore it, or remove it and run the grid again: finished runs "
        "are kept, the seeds that it declared are not"
    )


def to_json(declared: Declared) -> list[dict[str, Any]]:
    """Return declared seeds in the form of `plan.json`."""
    return [
        {"task": task, "env_steps": env_steps, "seeds": seeds}
        for (task, env_steps), seeds in declared.items()
    ]


def from_json(saved: Mapping[str, Any]) -> Declared:
    """Return the seeds that the content of a `plan.json` declares.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: if it has another form.
    """
    declared: Declared = {}
    for row in saved["declared"]:
        seeds = _whole_numbers(row["seeds"])
        if not 0 < len(set(seeds)) == len(seeds) or type(row["env_steps"]) is not int:
            raise ValueError("no seeds that are ever declared")
        declared[str(row["task"]), row["env_steps"]] = seeds
    return declared


def worth_declaring(declared: Declared) -> Declared:
    """Return the seeds that could decide: at least `MIN_SEEDS` of a task.

    Fewer seeds give no verdict, so a plan may try one seed first and continue with more.
    """
    return {key: seeds for key, seeds in declared.items() if len(seeds) >= MIN_SEEDS}


def _whole_numbers(values: Sequence[Any]) -> tuple[int, ...]:
    if not isinstance(values, list) or any(type(value) is not int for value in values):
        raise TypeError("no list of whole numbers")
    return tuple(values)
