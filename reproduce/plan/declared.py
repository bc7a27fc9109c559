"""Declared seeds: those by which a task is judged, fixed before it is trained.

Adding seeds until a verdict appears finds one too often. So a plan declares a task's seeds when it
is first started, in `plan.json`. A verdict on more seeds is exploratory.
"""

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduce.words import counted
from suite.files import read_json
from suite.settings import UsageError

MIN_SEEDS = 3
"""Smallest number of seeds that is tested."""

MOST_SEEDS = 10_000
"""Largest number of seeds of a plan."""

Declared = dict[tuple[str, int], tuple[int, ...]]
"""Declared seeds by task and environment steps, in the order in which they were asked for."""


def declare(
    declared: Declared,
    env_steps: Mapping[str, int],
    seeds: Sequence[int],
    published: Container[tuple[str, int]] = (),
) -> dict[str, tuple[int, ...]]:
    """Return the declared seeds of every task of a plan: those declared before, else the plan's.

    Args:
        declared: seeds declared before, in the same folder.
        env_steps: environment steps of the plan, by task.
        seeds: the plan's.
        published: tasks and steps whose seeds were declared for published runs.

    Raises:
        UsageError: if the plan drops a seed that a task was declared with.
    """
    found = {task: declared.get((task, steps), tuple(seeds)) for task, steps in env_steps.items()}
    for task, before in found.items():
        if set(before) <= set(seeds):
            continue
        go_on = f"--seeds {' '.join(map(str, before))}"
        if (task, env_steps[task]) in published:
            raise UsageError(
                f"{task} is published with {counted(len(before), 'declared seed')}: take them with "
                f"{go_on}, or train your own with --no-published"
            )
        raise UsageError(
            f"{task} was started with {counted(len(before), 'declared seed')}: go on with {go_on}, "
            "or start anew beside it with --fresh --no-published and other --seeds"
        )
    return found


def refuse_many(num_seeds: int, where: str) -> None:
    """Refuse a plan that would take minutes to make.

    Args:
        num_seeds: its number of seeds.
        where: the flag or the file that says so.

    Raises:
        UsageError: naming the limit.
    """
    if num_seeds > MOST_SEEDS:
        raise UsageError(f"{where}: a plan has at most {MOST_SEEDS:,} seeds, not {num_seeds:,}")


def read_declared(path: Path) -> Declared:
    """Return the seeds that a folder's `plan.json` declares; empty without that file.

    Raises:
        UsageError: if it cannot be read as a plan, or one of too many seeds.
    """
    try:
        saved = read_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise unreadable_plan(path, error) from None
    try:
        declared = from_json(saved)
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
    why = "not the plan of a grid of runs"
    if isinstance(error, OSError):
        return UsageError(f"unreadable {path}: {error}")
    if error is not None:
        is_empty = path.is_file() and not path.stat().st_size
        why = "the file is empty" if is_empty else f"not JSON ({error})"
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

    Older plans say `looks` instead of `declared`: the numbers of seeds at which a task was judged,
    of which the first counts. The oldest say neither, and declared all of their seeds.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: if no version writes such a form.
    """
    if "declared" not in saved and "looks" not in saved:
        seeds = _whole_numbers(saved["seeds"])
        return worth_declaring(dict.fromkeys(saved["env_steps"].items(), seeds))
    declared: Declared = {}
    for row in saved["declared"] if "declared" in saved else saved["looks"]:
        seeds = _whole_numbers(row["seeds"])
        seeds = seeds if "declared" in saved else seeds[: min(_whole_numbers(row["looks"]))]
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
