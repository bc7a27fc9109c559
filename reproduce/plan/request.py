"""What is asked for: one `Request` is the command's flags and `make_plan`'s arguments.

`plan.json` holds one, too: that of the plan that was last run in its folder.
"""

import dataclasses
import itertools
from argparse import SUPPRESS, Namespace
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any

import agents
from reproduce.plan.declared import refuse_many
from suite.command_line import Parser, minutes, whole, whole_numbers
from suite.settings import BUDGETS, UsageError, nearest
from suite.tasks import SUITES, nearest_task, tasks_in

SEVERAL: dict[str, Any] = {"nargs": "+", "action": "extend"}
LAUNCHERS = ("local", "ray")
RUNS = Path("runs")


def flag(default: Any = MISSING, **how: Any) -> Any:
    """Return a field that a flag sets, or an argument of its place where there is no default.

    Args:
        default: the field's.
        how: what argparse is told; `name`: the flag, if it is called otherwise than the field.
    """
    return dataclasses.field(default=default, metadata=how)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A grid of runs as somebody asks for it; what is None, the preset and the machine decide."""

    agent: str = flag(help=", ".join(agents.AGENTS))
    suite: str = flag(help=", ".join(SUITES))
    tasks: Sequence[str] | None = flag(
        None, **SEVERAL, metavar="TASK", help="default: all of the suite"
    )
    budget: str = flag("laptop", help="smoke, laptop (default) or paper")
    seeds: Sequence[int] | None = flag(
        None, type=whole_numbers, **SEVERAL, metavar="SEED", help="1 2 3, 1,2,3 or 1-3"
    )
    num_seeds: int | Mapping[str, int] | None = flag(
        None, type=int, metavar="N", help="seeds 1 to N, instead of --seeds"
    )
    env_steps: int | Mapping[str, int] | None = flag(
        None, type=whole, metavar="N", help="instead of the budget's: 30000, 30k or 3e4"
    )
    source: str | None = flag(
        None, name="--like", metavar="SOURCE", help="default: the suite's, first in `list`"
    )
    runs_dir: Path = flag(RUNS, type=Path, metavar="DIR")  # noqa: RUF009
    published: bool = flag(
        True,
        name="--no-published",
        action="store_false",
        help="run what is finished under results/published all the same",
    )
    checkpoint_minutes: float | None = flag(
        None,
        type=minutes,
        metavar="N",
        help="time between two checkpoints of a run (default: 5; 0: at every update)",
    )
    drop_checkpoints: bool = flag(
        False,
        action="store_true",
        help="keep no checkpoint of finished runs: a larger --env-steps cannot extend them then",
    )
    keep_best: bool = flag(
        False,
        action="store_true",
        help="keep the policy of each run's best evaluation, too: `evaluate RUN --best`",
    )
    device: str = flag(
        "auto",
        help="auto (default): GPUs if there are any; cpu; cuda: every GPU; cuda:<i>: that one",
    )
    workers: int | None = flag(
        None, type=int, metavar="N", help="processes side by side; default: as many as fit"
    )
    launcher: str = flag("local", help="local (default) or ray: on a cluster, see docs/ray.md")
    ray_address: str | None = flag(
        None,
        metavar="HOST:PORT",
        help="auto: the cluster that this machine is part of (default: a Ray of its own)",
    )
    settings: Sequence[str] | Mapping[str, str] = flag(
        (),
        name="--set",
        **SEVERAL,
        metavar="KEY=VALUE",
        help="a setting; KEY=A,B sweeps over values, or lists: KEY=64,64/256,256",
    )


FIELDS: Mapping[str, Field[Any]] = {field.name: field for field in fields(Request)}
GRID = ("agent", "suite", "source", "runs_dir")
"""Fields that select a grid which was run before."""
SIZE = ("tasks", "budget", "env_steps", "workers", "settings", "num_seeds", "seeds")
SAVED = [name for name in FIELDS if name not in ("tasks", "runs_dir", "launcher", "ray_address")]
"""Entries of `plan.json`, beside the `declared` seeds; steps and number of seeds are by task."""


def _flag_of(field: Field[Any]) -> str:
    return field.metadata.get("name", f"--{field.name.replace('_', '-')}")


def add_flags(parser: Parser, names: Collection[str] = FIELDS.keys()) -> None:
    """Add the flags of a request, or of some of its fields."""
    for field in (FIELDS[name] for name in FIELDS if name in names):
        how = {key: value for key, value in field.metadata.items() if key != "name"}
        if field.default is MISSING:
            parser.add_argument(field.name, **how)
        else:
            parser.add_argument(_flag_of(field), dest=field.name, default=SUPPRESS, **how)


def read_request(options: Namespace) -> Request:
    """Return the request that a parser with `add_flags` has read.

    Raises:
        UsageError: naming the flag that cannot be obeyed.
    """
    asked = {name: value for name, value in vars(options).items() if name in FIELDS}
    if asked.get("seeds"):
        asked["seeds"] = tuple(itertools.chain.from_iterable(asked["seeds"]))
    request = Request(**asked)
    check(request)
    return request


def check(request: Request) -> None:
    """Refuse what is wrong whatever agent and machine are meant.

    Raises:
        UsageError: naming the flag.
    """
    if request.agent not in agents.AGENTS:
        raise UsageError(f"unknown agent {request.agent!r}{nearest(request.agent, agents.AGENTS)}")
    allowed = tasks_in(request.suite)
    for name in request.tasks or ():
        if name not in allowed:
            near = nearest_task(name, allowed)
            raise UsageError(f"--tasks: no task {name!r} in {request.suite}{near}")
    if request.budget not in BUDGETS:
        near = nearest(request.budget, BUDGETS)
        raise UsageError(f"--budget: unknown budget {request.budget!r}{near}")
    for name in ("env_steps", "num_seeds", "workers"):
        value = getattr(request, name)
        if isinstance(value, int) and value < 1:
            raise UsageError(f"{_flag_of(FIELDS[name])} must be at least 1, not {value}")
    if request.launcher not in LAUNCHERS:
        near = nearest(request.launcher, LAUNCHERS)
        raise UsageError(f"--launcher: unknown launcher {request.launcher!r}{near}")
    if request.ray_address is not None and request.launcher != "ray":
        raise UsageError("--ray-address needs --launcher ray")
    _check_seeds(request)


def _check_seeds(request: Request) -> None:
    seeds = request.seeds
    if seeds is None:
        if isinstance(request.num_seeds, int):
            refuse_many(request.num_seeds, "--num-seeds")
        return
    if isinstance(request.num_seeds, int):
        raise UsageError("--num-seeds counts seeds and --seeds names them: leave out either")
    refuse_many(len(seeds), "--seeds")
    for seed in seeds:
        if not 0 <= seed < 2**31:
            raise UsageError(f"--seeds: {seed} is outside 0..2147483647")
    if len(set(seeds)) < len(seeds):
        raise UsageError("--seeds: a seed is named twice")


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
