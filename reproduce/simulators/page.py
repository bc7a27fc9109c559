"""The tables of the simulators' page, made from what was measured on each machine."""

import json
from pathlib import Path

import pandas as pd

from reproduce import ROOT
from reproduce.simulators import claims, measure
from reproduce.words import table

SIMULATORS = ROOT / "results" / "simulators"
MODES = {"random": "", "policy": ", A2C acts", "training": ", A2C trains"}
FIGURES = {
    "speeds": "Steps/s over the number of environments",
    "threads": "Steps/s over threads",
    "training": "Speed and shares of time of A2C's trainings",
}


def simulators() -> str:
    """Return the speeds, claims and differences measured on each machine."""
    parts = []
    for path in sorted(SIMULATORS.glob("*/machine.json")):
        about = json.loads(path.read_bytes())["machine"]
        parts.append(f"## {about['processor']}, {about['cores']} cores")
        turns, same_work = path.parent / "turns.csv", path.parent / "same_work.csv"
        if turns.exists():
            rows = measure.read(turns)
            others = rows["others"].median()
            if others > measure.MOST_BUSY:
                parts.append(f"Other programs used {others:.1f} cores beside the median turn.")
            parts += [_speeds(rows), *_figures(path.parent)]
            parts += ["### Claims", _claims(rows, about["cores"])]
        else:
            parts.append("Speeds are not measured yet.")
        if same_work.exists():
            parts += ["### The same work?", _same_work(same_work)]
    return "\n\n".join(parts) or "No machine's results are published yet."


def _speeds(turns: pd.DataFrame) -> str:
    """Return steps/s, medians over turns: a line for each cell, a column for each engine."""
    medians = measure.medians(turns)
    medians["engine"] = medians["engine"] + medians["mode"].map(MODES)
    keys = ["task", "num_envs", "num_threads"]
    order = medians["engine"].unique()
    wide = medians.pivot(index=keys, columns="engine", values="env_steps_per_second")[order]
    rows = []
    for key, row in wide.iterrows():
        speeds = ["" if pd.isna(speed) else f"{speed:,.0f}" for speed in row]
        rows.append([*key, *speeds])
    return table(["task", "environments", "threads", *order], rows)


def _figures(folder: Path) -> list[str]:
    """Return the figures of a machine."""
    place = folder.relative_to(ROOT).as_posix()
    names = [name for name in FIGURES if (folder / f"{name}.svg").exists()]
    return [f"![{FIGURES[name]}](/{place}/{name}.svg)" for name in names]


def _claims(turns: pd.DataFrame, num_cores: int) -> str:
    rows = []
    for claim in claims.judge(turns, num_cores):
        found = f"{claim['found']:.2f} [{claim['low']:.2f}, {claim['high']:.2f}]"
        found = "" if pd.isna(claim["found"]) else found
        said = f"[{claim['says']}]({claim['link']})"
        numbers = [f"{claim['ratio']:g}", found, claim["verdict"]]
        rows.append([said, claim["where"], claim["task"], claim["beside"], *numbers])
    header = ["claim", "measured with", "task", "speeds", "claimed", "here", "verdict"]
    return table(header, rows)


def _same_work(path: Path) -> str:
    frame = pd.read_csv(path, dtype="str", keep_default_na=False)
    rows = []
    for row in frame[frame["num_episodes"] != ""].itertuples():
        means = [f"{row.length_mean} ± {row.length_se}", f"{row.return_mean} ± {row.return_se}"]
        spaces = [row.obs, row.actions, row.frame_skip, row.autoreset]
        rows.append([row.task, row.engine, *spaces, row.tape_return, *means])
        rows[-1].append(row.differs or "nothing")
    header = ["task", "engine", "observation", "actions", "frame skip", "resets in"]
    return table([*header, "tape", "length", "return", "differs"], rows)
