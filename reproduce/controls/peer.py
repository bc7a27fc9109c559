"""Controls: references that are made here, by running another library's program, unchanged.

A peer is three files in `reproduce/controls/peers`: `<peer>.txt` pins its environment, `<peer>.py`
is the glue that its own Python runs, and `<peer>.toml` says whose it is and, for each agent, which
of our settings the glue hands over (`sets`, some of them with a few `choices`), what the peer does
in its own way (`has`, each with its place), and in what else ours departs from it. docs/controls.md
explains it. A control's plan is a grid of an agent whose runs the peer makes; so the launcher,
leases, declared seeds and all that is gathered are those of any grid.
"""

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduce import ROOT
from reproduce.plan.declared import keep_declared
from reproduce.plan.grid import Plan, Program, Run
from reproduce.plan.make import commands, make_plan
from reproduce.plan.presets import check_agent, presets_of
from reproduce.plan.request import RUNS
from reproduce.plan.status import Code
from suite.base import code, hardware
from suite.base.errors import UsageError, nearest
from suite.envs.tasks import find_task
from suite.record.reading import SCHEMA_VERSION

GLUE = ROOT / "reproduce" / "controls" / "peers"
PEERS = ROOT / ".venv-peers"
"""Holds an environment for each peer: `make peers PEER=...`."""
RUN = GLUE / "run.py"
SUFFIX = "_control"
"""Of the names of sources that were made here."""
FACTS = ("title", "repository", "commit", "licence", "families")
MEASUREMENT = ("task", "seeds", "env_steps", "device", "num_threads", "log_interval")
MEASUREMENT += ("evaluation_rule", "evaluation_interval", "evaluation_episodes")
"""Fields of a configuration that say what is run and measured, not how it learns."""


@dataclass(frozen=True, kw_only=True)
class Peer(Program):
    """A program of somebody else, and how it trains one of our agents."""

    agent: str
    title: str
    repository: str
    commit: str
    """Commit of `repository` whose lines the citations of `has` name."""
    licence: str
    families: Sequence[str]
    """Of the tasks that its glue can make."""
    actions: Sequence[str]
    """Kinds of actions that its glue can learn with this agent."""
    sets: Sequence[str]
    """Settings that the glue hands over."""
    choices: Mapping[str, Sequence[Any]]
    """Values that such a setting may have; of others, all."""
    has: Mapping[str, Mapping[str, Any]]
    """Settings that are the peer's own: `value`, and the place (`at`) or `because`."""
    stated: Sequence[str]
    """Differences of ours, with these settings, from the peer."""

    @property
    def python(self) -> Path:
        """Return the Python of its environment."""
        return PEERS / self.name / "bin" / "python"

    def configure(self, config: Any, changed: Collection[str] = ()) -> Any:
        """Return a configuration with the peer's own settings in place of a source's.

        `changed` names the settings that the user asks for.

        Raises:
            UsageError: if it asks for what the peer cannot do.
        """
        task, own = find_task(config.task), {key: of["value"] for key, of in self.has.items()}
        who = f"{self.name}'s {self.agent}"
        for kind, kinds in ((task.family, self.families), (task.actions, self.actions)):
            if kind not in kinds:
                here = f"{who} is here for tasks that are {' or '.join(kinds)}"
                raise UsageError(f"{config.task} is {kind}: {here}, choose such --tasks")
        for key in changed:
            asked = getattr(config, key)
            if key in own and asked != own[key]:
                fix = f"leave out --set {key}={asked}"
                raise UsageError(f"{who} has {key} = {own[key]} of its own: {fix}")
        config = dataclasses.replace(config, **own)
        for field in dataclasses.fields(config):
            value, known = getattr(config, field.name), (*self.sets, *self.has, *MEASUREMENT)
            allowed = self.choices.get(field.name)
            if field.name not in known:
                allowed = [field.default]
            if allowed is not None and value not in allowed:
                raise UsageError(
                    f"{who} cannot have {field.name} = {value}, only "
                    f"{', '.join(map(str, allowed))}: choose another --like, or change it by --set"
                )
        return config

    def code(self, agent: str) -> Mapping[str, str]:
        """Return checksums of `run.py` and of the peer's glue, settings and pins."""
        files = [RUN, *(GLUE / f"{self.name}.{end}" for end in ("py", "toml", "txt"))]
        return {
            f"reproduce/controls/peers/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest()
            for file in files
        }

    def today(self, agent: str) -> Code:
        """Return the glue, which has no number: runs count until it changes."""
        return Code(None, self.code(agent), ())

    def departures(self, plan: Plan) -> Sequence[str]:
        """Return where the peer differs from the source whose settings it is given."""
        return [
            f"{key} = {of['value']}, the peer's own"
            for key, of in self.has.items()
            if getattr(plan.preset.config, key) != of["value"]
        ]

    def command(self, plan: Plan, runs: Sequence[Run], env_threads: int) -> tuple[str, ...]:
        """Return the command by which the peer's own Python makes a run."""
        (run,) = runs
        known = {"task": run.task, "seeds": (run.seed,), "env_steps": run.env_steps}
        config = dataclasses.replace(plan.config, **known, device="cpu")
        command = "\n".join(commands(plan))
        record = {
            "schema_version": SCHEMA_VERSION,
            **{"agent": plan.agent, "suite": plan.suite, "source": plan.source, "task": run.task},
            **{"config": dataclasses.asdict(config), "command": command, "seed": run.seed},
            **{"status": "running", "error": None, "started_at": None, "resumed_at": []},
            **{"ended_at": None, "wall_seconds": None, "control": self.name},
            **{**code.revision(), "machine": hardware.machine()},
            **{"sources": plan.today.sources, "behaviour": None, "versions": {}},
        }
        places = {"folder": run.directory.absolute(), "glue": GLUE / f"{self.name}.py"}
        order = {key: str(place) for key, place in places.items()}
        order |= {"peer": self.name, "pins": self.pins, "seed": run.seed, "record": record}
        return (str(self.python), "-I", str(RUN), json.dumps(order))


def peers() -> list[str]:
    """Return the names of the peers that have glue here."""
    return sorted(path.stem for path in GLUE.glob("*.toml"))


def _read(peer: str) -> dict[str, Any]:
    return tomllib.loads((GLUE / f"{peer}.toml").read_text(encoding="utf-8"))


def agents_of(peer: str) -> list[str]:
    """Return the agents that a peer can train."""
    return [key for key, value in _read(peer).items() if isinstance(value, dict)]


def read_peer(name: str, agent: str) -> Peer:
    """Return how a peer trains an agent; a `UsageError` names the nearest peer or agent."""
    if name not in peers():
        raise UsageError(f"unknown peer {name!r}{nearest(name, peers())}")
    check_agent(agent)
    if agent not in agents_of(name):
        raise UsageError(f"{name} has no {agent}{nearest(agent, agents_of(name))}")
    said, pinned = _read(name), (GLUE / f"{name}.txt").read_text(encoding="utf-8")
    facts, of = {key: said[key] for key in FACTS}, said[agent]
    return Peer(
        verb=("control", name),
        prefix=f"{facts['title']}: ",
        pins=dict(line.split("==", 1) for line in pinned.split() if "==" in line),
        name=name,
        agent=agent,
        sets=of["sets"],
        has=of.get("has", {}),
        choices=of.get("choices", {}),
        stated=of["departures"],
        actions=of.get("actions", ("discrete", "continuous")),
        **facts,
    )


def make_control(peer: str, agent: str, suite: str, **asked: Any) -> Plan:
    """Return the plan of a control. Nothing is written.

    Its runs lie in `controls/<peer>` of the runs directory; `asked` are the other fields of
    `Request`.

    Raises:
        UsageError: for anything unknown, or that the peer cannot do.
    """
    found, runs_dir = read_peer(peer, agent), asked.get("runs_dir", RUNS)
    folder = runs_dir / "controls" / peer
    own: dict[str, Any] = {"runs_dir": folder, "device": "cpu"}
    others = (name for of, name in presets_of(agent) if of == suite and not name.endswith(SUFFIX))
    own["source"] = asked.get("source") or next(others, None)  # None: make_plan says what lacks
    plan = make_plan(agent, suite, **asked | own)
    each = (dataclasses.replace(plan.config, task=task) for task in plan.tasks)
    configs = [found.configure(config, plan.settings) for config in each]
    plan = dataclasses.replace(plan, config=configs[0], program=found, runs_dir=runs_dir)
    return keep_declared(plan)


def peer_of(plan: Plan) -> Peer:
    """Return the peer that makes a control's runs."""
    assert isinstance(plan.program, Peer)
    return plan.program
