"""What a report of many runs costs: `python -m tests.benchmarks.many_runs [--runs 2000]`.

The runs are those of a published one, under other seeds and with losses of their own. Nothing is
trained; `results/published` is left as it is.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

from reproduce import ROOT
from reproduce.plan.grid import PUBLISHED
from reproduce.plan.make import make_plan, save_plan
from suite.record.manifest import TABLES, write_manifest

AGENT, SUITE, TASK = "a2c", "classic", "CartPole-v1"


def copy_runs(runs_dir: Path, num_runs: int) -> None:
    """Write a plan and `num_runs` finished runs of it."""
    plan = make_plan(AGENT, SUITE, tasks=[TASK], num_seeds=num_runs, runs_dir=runs_dir)
    original = PUBLISHED / f"{AGENT}-{SUITE}" / plan.source / TASK / "seed-1"
    record = json.loads((original / "run.json").read_bytes())
    tables = {
        name: pd.read_csv(path) for name in TABLES for path in original.glob(f"{name}*") if path
    }
    steps, code = record["config"]["env_steps"], dict(plan.today.sources)
    for seed in plan.seeds:
        folder = plan.directory / TASK / f"seed-{seed}"
        folder.mkdir(parents=True)
        for name, table in tables.items():
            changed = table.assign(**{table.columns[-1]: table[table.columns[-1]] + seed * 1e-6})
            changed.to_csv(folder / name, index=False)
        config = record["config"] | {"seeds": [seed]}
        said = record | {"seed": seed, "config": config, "sources": code}
        content = json.dumps(said).encode()
        write_manifest(folder, content)
        (folder / "run.json").write_bytes(content)
    save_plan(plan)
    saved = json.loads((plan.directory / "plan.json").read_bytes())
    saved |= {"env_steps": {TASK: steps}, "published": False}
    (plan.directory / "plan.json").write_text(json.dumps(saved))


def main() -> None:
    """Print processor time and peak memory of a report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy_runs(Path(folder), options.runs)
        command = [sys.executable, "-m", "reproduce", "report", AGENT, SUITE, "--runs-dir", folder]
        subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{options.runs} runs: {used.ru_utime + used.ru_stime:.1f} s of processor time, "
        f"{used.ru_maxrss / 1024:.0f} MiB at most"
    )


if __name__ == "__main__":
    main()
