"""Declared looks: the numbers of seeds at which a task is judged, fixed before it is trained.

Adding seeds until a verdict appears finds one too often. So a plan declares its looks when it
first trains a task, in `plan.json`: one at its number of seeds, or several at a smaller level each
(`--until-decided`). A verdict on more seeds is exploratory.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.files import read_json
from suite.settings import UsageError

LEVELS = (0.05, 0.027, 0.020)
"""One-sided level of each look of a plan with one, two or three looks.

Two looks (at 5 and up to 10 seeds) and three (at 5, 10 and up to 20) err at the margin with a
probability of at most 5 % in total. `looks_at_margin` of `judge/error_rates.py` finds 4.8 and 4.9 %
in the worst case (400,000 repetitions): normal seeds, a reference of 3 to 30 runs, or of as many as
ours at every look, and our spread half, the same or twice the reference's.
"""

MIN_SEEDS = 3
"""Smallest number of seeds that is tested."""

MOST_SEEDS = 10_000
"""Largest number of seeds of a plan."""

SCHEDULE = (5, 10, 20)
"""Numbers of seeds of a plan that is judged several times; a smaller maximum cuts it short."""


@dataclass(frozen=True)
class Looks:
    """Declared looks of one task at one number of steps."""

    seeds: tuple[int, ...]
    """Every seed that a look counts, in the order in which they are added."""
    counts: tuple[int, ...]
    """Number of seeds that each look counts, increasing; the last counts all."""

    @property
    def level(self) -> float:
        """Return the one-sided level of the test at each look."""
        return LEVELS[len(self.counts) - 1]

    def seeds_at_looks(self) -> list[tuple[int, ...]]:
        """Return the seeds that each look counts."""
        return [self.seeds[:count] for count in self.counts]

    def __str__(self) -> str:
        """Describe them: `looks at 5, 10 and 20 seeds`."""
        *first, last = map(str, self.counts)
        at = f"looks at {', '.join(first)} and {last}" if first else f"one look at {last}"
        return f"{at} seeds"


Declared = dict[tuple[str, int], Looks]
"""Looks by task and environment steps."""


def one_look(seeds: Iterable[int]) -> Looks:
    """Return one look at all these seeds."""
    seeds = tuple(seeds)
    return Looks(seeds, (len(seeds),))


def several_looks(max_seeds: int) -> Looks:
    """Return looks at the numbers of `SCHEDULE` below `max_seeds`, and at `max_seeds`."""
    counts = (*(count for count in SCHEDULE if count < max_seeds), max_seeds)
    return Looks(tuple(range(1, max_seeds + 1)), counts)


def declare(
    declared: Declared,
    env_steps: Mapping[str, int],
    seeds: Sequence[int],
    *,
    until_decided: bool,
    published: Container[tuple[str, int]] = (),
) -> dict[str, Looks]:
    """Return the looks of every task of a plan: those declared before, else new ones.

    Args:
        declared: looks declared before, in the same folder.
        env_steps: environment steps of the plan, by task.
        seeds: the plan's.
        until_decided: whether several looks at these seeds are asked for.
        published: tasks and steps whose looks were declared for published runs.

    Raises:
        UsageError: if a task was declared otherwise and the plan cannot keep to it: it drops a
            seed of a look, or asks for several looks other than the declared ones.
    """
    now = several_looks(len(seeds)) if until_decided else one_look(seeds)
    looks = {task: declared.get((task, steps), now) for task, steps in env_steps.items()}
    for task, before in looks.items():
        if before != now and (until_decided or not set(before.seeds) <= set(seeds)):
            go_on = f"--seeds {' '.join(map(str, before.seeds))}"
            if before == several_looks(len(before.seeds)) and len(before.counts) > 1:
                go_on = f"--until-decided --max-seeds {len(before.seeds)}"
            if (task, env_steps[task]) in published:
                raise UsageError(
                    f"{task} is published with {before}: take them with {go_on}, or train your own "
                    "with --no-published"
                )
            raise UsageError(
                f"{task} was started with {before}: go on with {go_on}, or start anew "
                "beside it with --fresh --no-published and other --seeds"
            )
    return looks


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
    """Return the looks that a folder's `plan.json` declares; empty without that file.

    A plan of an older version declares one look at its seeds.

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
    refuse_many(max((len(looks.seeds) for looks in declared.values()), default=0), str(path))
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
        "are kept, the looks that it declared are not"
    )


def to_json(declared: Declared) -> list[dict[str, Any]]:
    """Return declared looks in the form of `plan.json`."""
    return [
        {"task": task, "env_steps": env_steps, "seeds": looks.seeds, "looks": looks.counts}
        for (task, env_steps), looks in declared.items()
    ]


def from_json(saved: Mapping[str, Any]) -> Declared:
    """Return the looks that the content of a `plan.json` declares.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: if `Plan.save` writes another form.
    """
    if "looks" not in saved:
        seeds = _whole_numbers(saved["seeds"])
        return worth_declaring({key: one_look(seeds) for key in saved["env_steps"].items()})
    declared: Declared = {}
    for row in saved["looks"]:
        looks = Looks(_whole_numbers(row["seeds"]), _whole_numbers(row["looks"]))
        known = looks.counts in ((len(looks.seeds),), several_looks(len(looks.seeds)).counts)
        known &= len(set(looks.seeds)) == len(looks.seeds) > 0
        if not (known and type(row["env_steps"]) is int):
            raise ValueError("no looks that are ever declared")
        declared[str(row["task"]), row["env_steps"]] = looks
    return declared


def worth_declaring(declared: Declared) -> Declared:
    """Return the looks that could decide: those with at least `MIN_SEEDS` seeds.

    Fewer seeds give no verdict, so a plan may try one seed first and continue with more.
    """
    return {key: looks for key, looks in declared.items() if len(looks.seeds) >= MIN_SEEDS}


def _whole_numbers(values: Sequence[Any]) -> tuple[int, ...]:
    if not isinstance(values, list) or any(type(value) is not int for value in values):
        raise TypeError("no list of whole numbers")
    return tuple(values)
