"""Run one control: a program of another library trains one seed, and its record is written as ours.

    PEER/bin/python -I run.py ORDER

The harness gives this command (`reproduce/controls/peer.py`); ORDER is JSON. The peer's own Python
runs it, so it imports nothing but the standard library, and after that the peer's glue, a file
beside this one with `train(agent, config, seed, record)`, which imports the peer and nothing else.
`-I` keeps this folder off the path: the glue may be called as its peer is.
"""

import csv
import datetime
import hashlib
import importlib.util
import json
import math
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

TABLES = {
    "episodes.csv": ("env_steps", "episode_return", "episode_length"),
    "evaluations.csv": ("env_steps", "mean_return"),
    "timing.csv": (
        *("env_steps", "num_updates", "wall_seconds", "env_steps_per_second"),
        *("environment_share", "acting_share", "learning_share", "evaluation_share"),
    ),
}
"""Columns of each table; evaluations also have the single returns. What share of a peer's time goes
where is not known: these cells stay empty."""
MANIFEST = "SHA256SUMS"
Play = Callable[[Sequence[int]], Sequence[float]]
"""Plays the first episode of fresh environments with these seeds by the policy as it is; returns
their returns, in the rewards of the task."""


class Diverged(Exception):
    """A return is not a finite number."""


class Record:
    """Writes one run's folder: `run.json`, tables, and the sums of all at the end.

    Args:
        folder: the run's.
        record: the entries of `run.json` that are known before it starts.
    """

    def __init__(self, folder: Path, record: Mapping[str, Any]) -> None:
        self._folder, self._config = folder, record["config"]
        self._started = self._logged = time.perf_counter()
        self._logged_steps = self._evaluated_at = self._last_steps = 0
        self._rows: dict[str, list[Sequence[Any]]] = {name: [] for name in TABLES}
        folder.mkdir(parents=True, exist_ok=True)
        for name in (*TABLES, MANIFEST):
            (folder / name).unlink(missing_ok=True)
        self._record = {**record, "status": "running", "started_at": _now()}
        self._write_record()

    def episode(self, env_steps: int, episode_return: float, length: int) -> None:
        """Record a training episode, in the rewards of the task.

        Args:
            env_steps: steps of all environments together when it ended.
            episode_return: its undiscounted return.
            length: its decisions.
        """
        self._rows["episodes.csv"].append((int(env_steps), float(episode_return), int(length)))
        self._refuse_infinite([episode_return], env_steps)

    def advance(self, env_steps: int, num_updates: int, play: Play) -> None:
        """Say how far the run is; evaluate and log where that is due. Call it often.

        Args:
            env_steps: steps of all environments together.
            num_updates: gradient steps so far.
            play: see `Play`.
        """
        if self._passed("evaluation_interval", env_steps):
            self._evaluate(env_steps, play)
        if self._passed("log_interval", env_steps):
            self._log(env_steps, num_updates)
        self._last_steps = int(env_steps)

    def finish(self, env_steps: int, num_updates: int, play: Play) -> None:
        """Evaluate for the last time, and mark the run as finished; arguments as `advance`."""
        if self._evaluated_at < env_steps:
            self._evaluate(env_steps, play)
        if self._logged_steps < env_steps:
            self._log(env_steps, num_updates)
        self.end("finished")

    def end(self, status: str, error: str | None = None) -> None:
        """Write what is buffered, then how the run ended; the sums of a finished one before."""
        self._flush()
        seconds = round(time.perf_counter() - self._started, 3)
        self._record |= {"status": status, "error": error, "wall_seconds": seconds}
        self._record["ended_at"] = _now()
        if status == "finished":
            sums = {name: _sum((self._folder / name).read_bytes()) for name in self._present()}
            sums["run.json"] = _sum(self._bytes())
            lines = "".join(f"{digest}  {name}\n" for name, digest in sums.items())
            _write(self._folder / MANIFEST, lines.encode())
        self._write_record()

    def _passed(self, interval: str, env_steps: int) -> bool:
        """Return whether a multiple of an interval was reached since the last call."""
        return env_steps // self._config[interval] > self._last_steps // self._config[interval]

    def _evaluate(self, env_steps: int, play: Play) -> None:
        self._evaluated_at = env_steps
        if self._config["evaluation_rule"] == "training":
            return
        draws = random.Random(f"evaluation {self._record['seed']} {env_steps}")
        seeds = [draws.randrange(2**31) for _ in range(self._config["evaluation_episodes"])]
        returns = [float(value) for value in play(seeds)]
        if len(returns) != len(seeds):
            raise ValueError(f"{len(returns)} returns of {len(seeds)} evaluation episodes")
        mean = sum(returns) / len(returns)
        self._rows["evaluations.csv"].append((int(env_steps), mean, *returns))
        self._refuse_infinite(returns, env_steps)
        print(f"env_steps {env_steps} mean_return {mean:.4g}", flush=True)

    def _log(self, env_steps: int, num_updates: int) -> None:
        now = time.perf_counter()
        speed = (env_steps - self._logged_steps) / max(now - self._logged, 1e-9)
        row = (int(env_steps), int(num_updates), round(now - self._started, 4), round(speed, 4))
        self._rows["timing.csv"].append((*row, "", "", "", ""))
        self._logged, self._logged_steps = now, env_steps
        self._flush()

    def _refuse_infinite(self, returns: Sequence[float], env_steps: int) -> None:
        if not all(map(math.isfinite, returns)):
            raise Diverged(f"a return that is not finite at {env_steps} env_steps")

    def _flush(self) -> None:
        """Append the buffered rows to the files, whole rows only."""
        for name, rows in self._rows.items():
            if not rows:
                continue
            path, header = self._folder / name, TABLES[name]
            singles = len(rows[0]) - len(header)
            with path.open("a", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                if file.tell() == 0:
                    writer.writerow((*header, *(f"return_{k}" for k in range(singles))))
                writer.writerows(rows)
            rows.clear()

    def _present(self) -> list[str]:
        return [name for name in TABLES if (self._folder / name).exists()]

    def _bytes(self) -> bytes:
        return (json.dumps(self._record, indent=2) + "\n").encode()

    def _write_record(self) -> None:
        _write(self._folder / "run.json", self._bytes())


def main(order: Mapping[str, Any]) -> int:
    """Train one seed; return the exit status: 2 if its environment is not the pinned one."""
    pins: Mapping[str, str] = order["pins"]
    versions = {name: _version(name) for name in pins}
    other = [
        f"{name} {versions[name]}, not {pin}" for name, pin in pins.items() if versions[name] != pin
    ]
    if other:
        print(f"the environment has {'; '.join(other)}: run `make -B peers PEER={order['peer']}`")
        return 2
    versions = {"python": sys.version.split()[0], **versions}
    record = Record(Path(order["folder"]), {**order["record"], "versions": versions})
    glue = importlib.util.spec_from_file_location("glue", order["glue"])
    module = importlib.util.module_from_spec(glue)
    glue.loader.exec_module(module)
    threading.excepthook = _end_with
    try:
        module.train(order["record"]["agent"], order["record"]["config"], order["seed"], record)
    except Diverged as error:
        record.end("diverged", str(error))
        return 2
    finally:
        threading.excepthook = threading.__excepthook__
    return 0


def _end_with(error: threading.ExceptHookArgs) -> None:
    """End the process with a thread of the peer's: its others would wait for it for ever."""
    if error.exc_type is not SystemExit:
        threading.__excepthook__(error)
        sys.stderr.flush()
        os._exit(1)


def _version(package: str) -> str:
    """Return a package's version, without the name of its build."""
    try:
        return metadata.version(package).partition("+")[0]
    except metadata.PackageNotFoundError:
        return "nothing"


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(path: Path, content: bytes) -> None:
    """Replace a file at once, so that nobody reads half of it."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    os.replace(new, path)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
