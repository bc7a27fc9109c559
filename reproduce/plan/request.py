"""A request: one `Request` is the command's flags and `make_plan`'s arguments.

`plan.json` holds most of its fields (`SAVED`), of the plan that was last run in its folder.
"""

import dataclasses
import itertools
from argparse import SUPPRESS, Namespace
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any

import agents
from reproduce.plan.presets import check_agent
from suite.base.errors import UsageError, nearest
from suite.envs.tasks import SUITES, find_task, nearest_task, tasks_in
from suite.settings.command_line import MOST_NUMBERS, Parser, folder, minutes, whole, whole_numbers
from suite.settings.presets import BUDGETS

SEVERAL: dict[str, Any] = {"nargs": "+", "action": "extend"}
LAUNCHERS = ("local", "ray")
RUNS = Path("runs")


def flag(default: Any = MISSING, help: str = "", **how: Any) -> Any:
    """Return a field that a flag sets; without a default it is a positional argument.

    `how` is what else argparse is told; `name`: the flag, if it is not called as the field.
    """
    if default is False:
        how["action"] = "store_true"
    return dataclasses.field(default=default, metadata={"help": help, **how})


@dataclass(frozen=True, kw_only=True)
class Request:
    """A grid of runs as somebody asks for it; what is None, the preset and the machine decide."""

    agent: str = flag(help=", ".join(agents.AGENTS))
    suite: str = flag(help=", ".join(SUITES))
    tasks: Sequence[str] | None = flag(
        None, "default: all of the suite; or MODULE:ID", **SEVERAL, metavar="TASK"
    )
    budget: str = flag("laptop", "smoke, laptop (default) or paper")
    seeds: Sequence[int] | None = flag(
        None, "1 2 3, 1,2,3 or 1-3", type=whole_numbers, **SEVERAL, metavar="SEED"
    )
    num_seeds: int | Mapping[str, int] | None = flag(
        None, "seeds 1 to N, instead of --seeds", type=whole, metavar="N"
    )
    env_steps: int | Mapping[str, int] | None = flag(
        None, "instead of the budget's: 30000, 30k or 3e4", type=whole, metavar="N"
    )
    source: str | None = flag(
        None,
        "whose settings and curves; default: the first in `list`",
        name="--like",
        metavar="SOURCE",
    )
    baseline: str | None = flag(
        None,
        "judge by the runs of this agent, or of the grid in this folder, not by a published curve",
        metavar="AGENT",
    )
    runs_dir: Path = flag(RUNS, "default: runs", type=folder, metavar="DIR")  # noqa: RUF009
    checkpoint_minutes: float | None = flag(
        None,
        "time between two checkpoints of a run (default: 5; 0: after every step or unroll)",
        type=minutes,
        metavar="N",
    )
    drop_checkpoints: bool = flag(
        False, "keep no checkpoint of finished runs; they cannot be extended"
    )
    keep_best: bool = flag(
        False, "also keep the policy of each run's best evaluation: `evaluate RUN --best`"
    )
    device: str = flag(
        "auto", "auto (default): GPUs, if any; cpu; cuda: every GPU; cuda:<i>: that one"
    )
    workers: int | None = flag(
        None, "processes side by side; default: as many as fit", type=whole, metavar="N"
    )
    launcher: str = flag("local", "local (default) or ray: on a cluster, see docs/robust.md")
    ray_address: str | None = flag(
        None,
        "auto: the cluster that this machine belongs to (default: a new Ray)",
        metavar="HOST:PORT",
    )
    settings: Sequence[str] | Mapping[str, str] = flag(
        (),
        "a setting; in a grid several values are a sweep: KEY=A,B, or of lists KEY=64,64/256,256",
        name="--set",
        **SEVERAL,
        metavar="KEY=VALUE",
    )
    fresh: bool = flag(False, "start anew, in a new folder of the runs directory")
    track: str = flag("", "copy runs into tensorboard or wandb during training", metavar="KIND")
    open: bool = flag(False, "open the page in the browser")
    dry_run: bool = flag(False, "print the plan and stop")


FIELDS: Mapping[str, Field[Any]] = {field.name: field for field in fields(Request)}
GROUPS = {
    "what": ("agent", "suite", "tasks", "source", "settings", "baseline"),
    "how much": ("budget", "seeds", "num_seeds", "env_steps", "fresh", "dry_run"),
    "how": (
        *("device", "workers", "launcher", "ray_address"),
        *("checkpoint_minutes", "drop_checkpoints", "keep_best"),
    ),
    "where": ("runs_dir", "track", "open"),
}
"""Fields by their place in the help."""
GRID = ("agent", "suite", "source", "runs_dir")
"""Fields that select a grid which was run before."""
SIZE = ("tasks", "budget", "env_steps", "workers", "settings", "num_seeds", "seeds")
SAVED: Mapping[str, Any] = {
    **{"agent": str, "suite": str, "source": str, "budget": str, "env_steps": dict, "seeds": list},
    **{"settings": dict, "device": str, "workers": int, "num_seeds": dict},
    **{"checkpoint_minutes": int | float | None, "drop_checkpoints": bool, "keep_best": bool},
}
"""Entries of `plan.json`, beside `declared` seeds; steps and numbers of seeds are by task."""
OPTIONAL = ("baseline", "launcher", "ray_address")
"""Text entries of `plan.json`, present only where they are not the default."""


def _flag_of(field: Field[Any]) -> str:
    return field.metadata.get("name", f"--{field.name.replace('_', '-')}")


def add_flags(parser: Parser, names: Collection[str] = FIELDS.keys()) -> None:
    """Add the flags of a request, or of some of its fields."""
    for title, group in GROUPS.items():
        place = parser.add_argument_group(title)
        for field in (FIELDS[name] for name in group if name in names):
            how = {key: value for key, value in field.metadata.items() if key != "name"}
            if field.default is MISSING:
                place.add_argument(field.name, **how)
            else:
                place.add_argument(_flag_of(field), dest=field.name, default=SUPPRESS, **how)


def read_request(options: Namespace) -> Request:
    """Return the request that a parser with `add_flags` has read, or a `UsageError`."""
    asked = {name: value for name, value in vars(options).items() if name in FIELDS}
    if asked.get("seeds"):
        asked["seeds"] = tuple(itertools.chain.from_iterable(asked["seeds"]))
    request = Request(**asked)
    check(request)
    return request


def check(request: Request) -> None:
    """Refuse, by a `UsageError` that names the flag, what is wrong for every agent and machine."""
    check_agent(request.agent)
    allowed, seeds = tasks_in(request.suite), request.seeds or ()
    for name in request.tasks or ():
        if ":" in name:
            find_task(name)  # imports its module
        elif name not in allowed:
            near = nearest_task(name, allowed)
            raise UsageError(f"--tasks: no task {name!r} in {request.suite}{near}")
    if request.tasks and len(set(request.tasks)) < len(request.tasks):
        raise UsageError("--tasks: a task is named twice")
    for name, known in (("budget", BUDGETS), ("launcher", LAUNCHERS)):
        value = getattr(request, name)
        if value not in known:
            raise UsageError(f"--{name}: unknown {name} {value!r}{nearest(value, known)}")
    for name in ("env_steps", "num_seeds", "workers"):
        value = getattr(request, name)
        if isinstance(value, int) and value < 1:
            raise UsageError(f"{_flag_of(FIELDS[name])} must be at least 1, not {value}")
    if isinstance(request.num_seeds, int) and request.num_seeds > MOST_NUMBERS:
        raise UsageError(f"--num-seeds: {request.num_seeds} are more than {MOST_NUMBERS:,}")
    if request.ray_address is not None and request.launcher != "ray":
        raise UsageError("--ray-address needs --launcher ray")
    if isinstance(request.num_seeds, int) and seeds:
        raise UsageError("--num-seeds counts seeds and --seeds names them: leave out either")
    for seed in seeds:
        if not 0 <= seed < 2**31:
            raise UsageError(f"--seeds: {seed} is outside 0..2147483647")
    if len(set(seeds)) < len(seeds):
        raise UsageError("--seeds: a seed is named twice")


def started_anew(request: Request) -> Request:
    """Return a request whose runs directory is a new one if it asks for `fresh`: `fresh-1`, ..."""
    if not request.fresh:
        return request
    places = (request.runs_dir / f"fresh-{number}" for number in itertools.count(1))
    place = next(place for place in places if not place.exists())
    return dataclasses.replace(request, runs_dir=place, fresh=False)


def words_of(request: Request) -> list[str]:
    """Return the words of the command line that ask for a request."""
    words = [request.agent, request.suite]
    for name, field in FIELDS.items():
        value = getattr(request, name)
        if field.default is MISSING or value in (field.default, {}):
            continue
        words.append(_flag_of(field))
        if isinstance(value, Mapping):
            words += [f"{key}={each}" for key, each in value.items()]
        elif isinstance(value, (list, tuple)):
            words += map(str, value)
        elif not isinstance(value, bool):
            words.append(str(value))
    return words
