"""The tables of the simulators' page, made from what was measured on each machine."""

from pathlib import Path

import pandas as pd

from reproduce import ROOT
from reproduce.simulators import claims, measure
from reproduce.words import table
from suite.base.files import read_json

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
        about, folder = read_json(path)["machine"], path.parent
        parts.append(f"## {about['processor']}, {about['cores']} cores")
        if (folder / "turns.csv").exists():
            rows, place = measure.read(folder / "turns.csv"), folder.relative_to(ROOT).as_posix()
            others = rows["others"].median()
            if others > measure.MOST_BUSY:
                parts.append(f"Other programs used {others:.1f} cores beside the median turn.")
            drawn = [name for name in FIGURES if (folder / f"{name}.svg").exists()]
            figures = [f"![{FIGURES[name]}](/{place}/{name}.svg)" for name in drawn]
            parts += [_speeds(rows), *figures, "### Claims", _claims(rows, about["cores"])]
        else:
            parts.append("Speeds are not measured yet.")
        if (folder / "same_work.csv").exists():
            parts += ["### The same work?", _same_work(folder / "same_work.csv")]
    return "\n\n".join(parts) or "No machine's results are published yet."


def _speeds(turns: pd.DataFrame) -> str:
    """Return steps/s, medians over turns: a line for each cell, a column for each engine."""
    medians = measure.medians(turns)
    medians["engine"] = medians["engine"] + medians["mode"].map(MODES)
    keys, order = ["task", "num_envs", "num_threads"], medians["engine"].unique()
    wide = medians.pivot(index=keys, columns="engine", values="env_steps_per_second")[order]
    said = wide.map("{:,.0f}".format).where(wide.notna(), "").reset_index()
    return table(["task", "environments", "threads", *order], said.to_numpy().tolist())


def _claims(turns: pd.DataFrame, num_cores: int) -> str:
    rows = []
    for claim in claims.judge(turns, num_cores):
        said = (f"[{claim['says']}]({claim['link']})", claim["where"], claim["task"])
        cells = (claim["beside"], f"{claim['ratio']:g}", claim["here"], claim["outcome"])
        rows.append((*said, *cells))
    header = ["claim", "measured with", "task", "speeds", "claimed", "here", "outcome"]
    return table(header, rows)


def _same_work(path: Path) -> str:
    frame = pd.read_csv(path, dtype="str", keep_default_na=False).query("num_episodes != ''")
    for name in ("length", "return"):
        frame[name] = frame[f"{name}_mean"] + " ± " + frame[f"{name}_se"]
    frame["differs"] = frame["differs"].replace("", "nothing")
    names = {"obs": "observation", "frame_skip": "frame skip", "autoreset": "resets in"}
    names |= {"tape_return": "tape"}
    columns = ["task", "engine", "observation", "actions", "frame skip", "resets in", "tape"]
    columns += ["length", "return", "differs"]
    return table(columns, frame.rename(columns=names)[columns].to_numpy().tolist())
