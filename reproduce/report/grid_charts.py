"""The charts of one grid beside its curves: scores, performance profile, improvement, throughput.

Each takes tidy frames, as in the CSV files of the page, and returns a fragment of `charts`, or an
empty text where there is nothing to draw. With the zero at 0 and the reference at 1, tasks share an
axis; one that has no such scale keeps its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from reproduce.judge.statistics import Scores, performance_profile
from reproduce.report import charts
from reproduce.report.charts import Panel, Series, literal, trace
from reproduce.words import number

OURS = Series("ours", "ours", charts.OURS[0], remark="each seed, their mean, the deciding interval")
MARGIN = Series("margin", "reference mean - margin", ("#9A4A12", "#E0A070"))
RANDOM = Series("random", "nothing learned", ("#5B6670", "#9AA5AE"))
SHARES = {
    "environment": ("#0072B2", "#3D9BD6"),
    "acting": ("#5CB4E4", "#9AD2F2"),
    "learning": ("#D99500", "#E9B44C"),
    "other": ("#B4BBC1", "#5B6670"),
}
SPEED = Series("speed", "steps per second of each run", charts.OURS[0], remark="line: median")

WIDEST = (-1.0, 3.0)
"""Normalised scores outside this range are arrows at its edge."""
ROW = 54
"""Pixels of one task's row."""
DOT = {"size": 8, "opacity": 0.45}
DIAMOND = {"symbol": "diamond", "size": 11}
TICK = {"symbol": "line-ns-open", "size": 34, "line": {"width": 2}}
NOBODY: Mapping[str, Mapping[str, str]] = {}


def scores_chart(
    scores: pd.DataFrame,
    reference_scores: pd.DataFrame,
    verdicts: pd.DataFrame,
    credits: Mapping[str, Mapping[str, str]] = NOBODY,
) -> str:
    """Return every run's score, ours and the reference's, beside means, interval and margin."""
    scored = verdicts[verdicts["task"].isin(scores["task"])]
    rows: list[dict[Any, Any]] = scored.where(scored.notna(), np.nan).to_dict("records")
    shared = [row for row in rows if row["reference_mean"] > row["zero_score"]]
    single = [row for row in rows if not row["reference_mean"] > row["zero_score"]]
    reference = _reference(verdicts, credits)
    groups = [(shared, True)] * bool(shared) + [([row], False) for row in single]
    panels = [
        _scores_panel(group, scores, reference_scores, reference, is_shared)
        for group, is_shared in groups
    ]
    if not panels:
        return ""
    used = {entry["meta"]["series"] for panel in panels for entry in panel.traces}
    series = [entry for entry in (OURS, reference, MARGIN, RANDOM) if entry.key in used]
    return charts.fragment("scores", panels, series, "Scores")


def profile_chart(
    scores: pd.DataFrame,
    reference_scores: pd.DataFrame,
    verdicts: pd.DataFrame,
    credits: Mapping[str, Mapping[str, str]] = NOBODY,
) -> tuple[str, str]:
    """Return the performance profile and a sentence on its omissions.

    The share of runs above each normalised score, averaged over tasks (Agarwal et al. 2021). It
    needs two tasks with several seeds; the reference's, single runs of all these tasks.
    """
    ours, theirs = _by_task(scores), _by_task(reference_scores)
    tasks = [task for task, values in ours.items() if len(values) > 1]
    if len(tasks) < 2:
        return "", "A performance profile needs two tasks with a scale and several seeds."
    with_runs = [task for task in tasks if len(theirs.get(task, ())) > 1]
    sides: list[tuple[Series, Scores]] = [(OURS._replace(remark=""), [ours[t] for t in tasks])]
    if with_runs == tasks:
        reference = _reference(verdicts, credits)._replace(remark="")
        sides.append((reference, [theirs[task] for task in tasks]))
    values = np.concatenate([task_scores for _, side in sides for task_scores in side])
    taus = np.linspace(max(min(values.min(), 0.0), WIDEST[0]), min(values.max(), WIDEST[1]), 121)
    traces = []
    for series, side in sides:
        share, low, high = performance_profile(side, taus, seed=0)
        traces.append(charts.band(series, taus, low, high))
        hover = "%{fullData.name}: <b>%{y:.0%}</b> of runs above %{x:.2f}<extra></extra>"
        traces.append(
            trace(series, "mean", taus, share, mode="lines", hoverinfo="all", hovertemplate=hover)
        )
    layout = {
        "xaxis": {"title": {"text": "normalised score"}, "hoverformat": ".2f"},
        "yaxis": {
            "title": {"text": "share of runs above"},
            "tickformat": ".0%",
            "range": [0, 1.02],
        },
    }
    panel = Panel(f"Performance profile over {len(tasks)} tasks", traces, layout, height=340)
    left_out = [task for task in dict.fromkeys(verdicts["task"]) if task not in tasks]
    said = [f"Left out: {', '.join(left_out)} (no scale, or one seed)."] if left_out else []
    if len(sides) == 1:
        said.append("The reference's is left out: it has no single runs of all these tasks.")
    return charts.fragment(
        "profile", [panel], [series for series, _ in sides], "Performance profile"
    ), " ".join(said)


def improvement_chart(improvement: pd.DataFrame) -> str:
    """Return the probability of improvement of every task that has one, and their mean."""
    if improvement.empty:
        return ""
    tasks = improvement["task"].fillna("").replace("", "all tasks")
    columns = ("probability", "ci_low", "ci_high")
    middle, low, high = (improvement[name].to_numpy(np.float64) for name in columns)
    hover = [
        f"{literal(task)}: <b>{value:.2f}</b> [{start:.2f}, {end:.2f}], {seeds:.0f} runs of ours, "
        f"{runs:.0f} of theirs"
        for task, value, start, end, seeds, runs in zip(
            tasks, middle, low, high, improvement["num_seeds"], improvement["num_runs"], strict=True
        )
    ]
    spans = [
        span
        for place, ends in enumerate(zip(low, high, strict=True))
        for span in _span(OURS, ends, float(place))
    ]
    points = _points(OURS, middle, range(len(tasks)), hover, DIAMOND)
    even = Series("even", "a coin's throw: equal", RANDOM.colours)
    layout = _rows_layout([*tasks]) | {
        "xaxis": {"title": {"text": "P(ours > reference)"}, "range": [-0.02, 1.02]}
    }
    line = trace(even, "line", [0.5, 0.5], [-0.5, len(tasks) - 0.5], mode="lines")
    traces = [line, *spans, points]
    panel = Panel("Probability of improvement", traces, layout, height=_height(len(tasks)))
    ours = OURS._replace(remark="95 % of resamples")
    return charts.fragment("improvement", [panel], [ours, even], "Probability of improvement")


def throughput_chart(throughput: pd.DataFrame) -> str:
    """Return the speed of every run, and the mean shares of wall time, by task and device."""
    if throughput.empty:
        return ""
    groups = list(throughput.groupby(["task", "device"], sort=False, dropna=False))
    several = throughput["device"].nunique(dropna=False) > 1
    names = [f"{task}, {device}" if several else str(task) for (task, device), _ in groups]
    series = {name: Series(name, name, colours) for name, colours in SHARES.items()}
    speeds, bars = [], []
    for place, (_, runs) in enumerate(groups):
        per_second = runs["env_steps_per_second"].to_numpy(np.float64)
        hover = [
            f"{literal(names[place])}, seed {seed}: <b>{number(value)}</b> steps/s"
            for seed, value in zip(runs["seed"], per_second, strict=True)
        ]
        places = np.full(len(runs), place)
        speeds.append(_points(SPEED, per_second, places, hover, DOT))
        median = np.nanmedian(per_second) if np.isfinite(per_second).any() else np.nan
        speeds.append(
            _points(SPEED, [median], [place], [f"median: {number(median)} steps/s"], TICK)
        )
    for name, entry in series.items():
        shares = [runs[f"{name}_share"].mean() for _, runs in groups]
        bars.append(_bar(entry, shares))
    axis: dict[str, Any] = {"rangemode": "tozero"}
    layout = _rows_layout(names)
    height = _height(len(groups))
    time = {"tickformat": ".0%", **axis}
    panels = [
        Panel("Environment steps per second", speeds, layout | {"xaxis": axis}, height=height),
        Panel(
            "Share of wall time", bars, layout | {"xaxis": time, "barmode": "stack"}, height=height
        ),
    ]
    return charts.fragment("throughput", panels, [SPEED, *series.values()], "Throughput")


def _bar(series: Series, shares: Sequence[float]) -> dict[str, Any]:
    values = charts.short(shares)
    bar = trace(series, "bar", values, range(len(values)), hoverinfo="all")
    texts = ["" if value is None or value < 0.06 else f"{100 * value:.0f}" for value in values]
    hover = "%{fullData.name}: <b>%{x:.1%}</b><extra></extra>"
    return bar | {
        **{"type": "bar", "orientation": "h", "text": texts, "textposition": "inside"},
        **{"insidetextanchor": "middle", "textangle": 0, "width": 0.6, "hovertemplate": hover},
    }


def _scores_panel(
    rows: Sequence[Mapping[str, Any]],
    scores: pd.DataFrame,
    reference_scores: pd.DataFrame,
    reference: Series,
    is_shared: bool,
) -> Panel:
    """Return a panel with a row for each task: ours above, the reference below."""
    traces = []
    for place, row in enumerate(rows):
        origin = row["zero_score"] if is_shared else 0.0
        scale = row["reference_mean"] - origin if is_shared else 1.0
        traces += _reference_row(row, place, reference_scores, reference, origin, scale)
        traces += _our_row(row, place, scores, origin, scale)
    layout = _rows_layout([str(row["task"]) for row in rows])
    if is_shared:
        title, label = "Normalised scores", "0: nothing learned, 1: reference mean"
        traces = [_inside(entry) for entry in traces]
    else:
        title, label = str(rows[0]["task"]), "return"
        layout["yaxis"]["showticklabels"] = False
    layout["xaxis"] = {"title": {"text": label}}
    return Panel(title, traces, layout, height=_height(len(rows)))


def _inside(points: dict[str, Any]) -> dict[str, Any]:
    """Return points with those outside `WIDEST` as arrows at its edge; hover texts stay true."""
    low, high = WIDEST
    points = points | {"x": [None if x is None else min(max(x, low), high) for x in points["x"]]}
    if "marker" in points:
        usual = points["marker"].get("symbol", "circle")
        arrows = {low: "triangle-left", high: "triangle-right"}
        symbols = [arrows.get(x, usual) for x in points["x"]]
        points["marker"] = points["marker"] | {"symbol": symbols}
    return points


def _our_row(
    row: Mapping[str, Any], place: int, scores: pd.DataFrame, origin: float, scale: float
) -> list[dict[str, Any]]:
    """Return a dot for each seed; below them the interval that decides, and the mean."""
    of_task = scores[scores["task"] == row["task"]]
    values = of_task["score"].to_numpy(np.float64)
    hover = [
        f"seed {seed}: <b>{number(value)}</b>"
        for seed, value in zip(of_task["seed"], values, strict=True)
    ]
    mean = values.mean()
    ends = [row["reference_mean"] + row[name] for name in ("ci_low", "ci_high")]
    text = f"ours, mean of {len(values)}: <b>{number(mean)}</b>"
    if np.isfinite(ends).all():
        text += f", deciding interval [{number(ends[0])}, {number(ends[1])}]"
    dots, means = np.full(len(values), place - 0.32), place - 0.14
    return [
        _points(OURS, (values - origin) / scale, dots, hover, DOT),
        *_span(OURS, [(end - origin) / scale for end in ends], means),
        _points(OURS, [(mean - origin) / scale], [means], [text], DIAMOND),
    ]


def _reference_row(
    row: Mapping[str, Any],
    place: int,
    reference_scores: pd.DataFrame,
    reference: Series,
    origin: float,
    scale: float,
) -> list[dict[str, Any]]:
    """Return the zero, the margin, mean and spread, and below them a dot for each run."""
    traces = []
    mean, std, margin = (row[name] for name in ("reference_mean", "reference_std", "margin"))
    marks = ((RANDOM, row["zero_score"]), (MARGIN, mean - margin))
    for series, value in marks:
        if np.isfinite(value):
            text = f"{series.name}: <b>{number(value)}</b>"
            traces.append(_points(series, [(value - origin) / scale], [place], [text], TICK))
    if not np.isfinite(mean):
        return traces
    of_task = reference_scores[reference_scores["task"] == row["task"]]
    values = of_task["score"].to_numpy(np.float64)
    name = literal(reference.name)
    hover = [
        f"{name}, run {run}: <b>{number(value)}</b>"
        for run, value in zip(of_task["run"], values, strict=True)
    ]
    text = f"{name}, mean of {row['reference_num_runs']:.0f} runs: <b>{number(mean)}</b>"
    text += f" ± {number(std)}" if np.isfinite(std) else ""
    dots, means = np.full(len(values), place + 0.32), place + 0.14
    ends = [(end - origin) / scale for end in (mean - std, mean + std)]
    return [
        *traces,
        _points(reference, (values - origin) / scale, dots, hover, DOT),
        *_span(reference, ends, means),
        _points(reference, [(mean - origin) / scale], [means], [text], DIAMOND),
    ]


def _span(series: Series, ends: Sequence[float], place: float) -> list[dict[str, Any]]:
    """Return a thick line between two numbers, none if one is unknown."""
    if not np.isfinite(ends).all():
        return []
    return [trace(series, "interval", ends, [place, place], mode="lines")]


def _points(
    series: Series,
    x: Any,
    y: Any,
    hover: Sequence[str],
    marker: Mapping[str, Any],
) -> dict[str, Any]:
    """Return markers with a text each."""
    template = "%{text}<extra></extra>"
    rest = {"mode": "markers", "marker": dict(marker), "text": list(hover), "hoverinfo": "text"}
    return trace(series, "point", x, y, hovertemplate=template, **rest)


def _reference(verdicts: pd.DataFrame, credits: Mapping[str, Mapping[str, str]]) -> Series:
    """Return the legend's entry of the source that judges."""
    sources = [str(source) for source in verdicts["reference_source"].dropna().unique()]
    names = [credits.get(source, {}).get("name", source) for source in sources]
    remark = "each run where they are known, mean ± std"
    return Series("reference", ", ".join(names) or "reference", charts.REFERENCE, remark=remark)


def _by_task(scores: pd.DataFrame) -> dict[str, NDArray[np.float64]]:
    """Return the normalised scores of every task that has a scale."""
    known = scores[np.isfinite(scores["normalised_score"].to_numpy(np.float64))]
    groups = known.groupby("task", sort=False)["normalised_score"]
    return {str(task): values.to_numpy(np.float64) for task, values in groups}


def _rows_layout(names: Sequence[str]) -> dict[str, Any]:
    """Return a layout with a row for each name, from the top."""
    axis = {
        **{"tickvals": list(range(len(names))), "ticktext": [literal(name) for name in names]},
        **{"range": [len(names) - 0.5, -0.5], "zeroline": False, "showgrid": False},
    }
    return {"yaxis": axis, "hovermode": "closest"}


def _height(num_rows: int) -> int:
    return 66 + ROW * num_rows
