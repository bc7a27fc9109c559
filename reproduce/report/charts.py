"""Charts that answer to the reader: learning curves, scores, profiles and times, drawn by plotly.

A function here takes tidy frames and returns an HTML fragment: a legend and switches that are
ordinary form controls, an empty place for each panel, and the panels as JSON. The fragments of a
page need three things once, wherever its writer puts them: `library()`, `script()` and `style()`.
Nothing is asked of a network.

Names come from files and are hostile: JSON is escaped so that it cannot end its script element,
markup by jinja2, and plotly, which reads a little markup in texts, gets it escaped as well.
"""

import functools
import html
import importlib.resources
import json
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import markupsafe
import numpy as np
import pandas as pd

from reproduce.report.curves import align_seeds, clip_reference, same_rule, thinned
from reproduce.words import counted, number

TEMPLATES = Path(__file__).parent / "templates"

# Distinct under common colour blindness (Okabe and Ito's hues); each for white, and for black.
OURS = (
    *(("#0072B2", "#56B4E9"), ("#7A4FB5", "#B79CF0"), ("#00795C", "#2FC79B")),
    *(("#A8467F", "#E59AC4"), ("#7D6200", "#E3BC45"), ("#007C91", "#4CC9DC")),
)
REFERENCE = ("#C24A00", "#FF8F4D")
OTHERS = (
    *(("#00795C", "#2FC79B"), ("#A8467F", "#E59AC4"), ("#7D6200", "#E3BC45")),
    *(("#4B55C8", "#A3ABFF"), ("#5B6670", "#B4BEC7"), ("#9B3A3A", "#FF9D9D")),
)
DASHES = ("dash", "dot", "dashdot", "longdash")

TIME_UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


class Series(NamedTuple):
    """One entry of a legend, which turns all traces of its name on and off."""

    key: str
    """Name of its traces in the fragment's JSON and in the control's `data-series`."""
    name: str
    """Name that readers see."""
    colours: tuple[str, str]
    """On white and on black."""
    shown: bool = True
    """Whether it is on at first."""
    remark: str = ""
    """Words behind the name."""
    links: Mapping[str, str] = {}
    """Addresses by their words."""
    dash: str = "solid"
    """One of plotly's patterns."""


class Panel(NamedTuple):
    """One drawing: title and remark are HTML's, traces and layout plotly's, without any colour."""

    title: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    remark: str = ""
    """Words under the title; a verdict, for example."""
    kind: str = ""
    """Class of the remark."""
    note: str = ""
    """Words on the parts that the drawing lacks."""
    height: int = 300
    """Pixels."""


class Heading(NamedTuple):
    """The heading above a task's panel; see `Panel`."""

    task: str
    remark: str = ""
    kind: str = ""
    env_steps: float = 0.0
    """Planned steps: how far references are drawn where we have no curve; 0: to their ends."""


@functools.cache
def library() -> str:
    """Return plotly's own script, of the installed package: 4.8 MB, which go into a page once."""
    files = importlib.resources.files("plotly") / "package_data" / "plotly.min.js"
    return files.read_text(encoding="utf-8")


def script() -> str:
    """Return the script that draws the fragments of a page; it comes after them and `library`."""
    return (TEMPLATES / "charts.js").read_text(encoding="utf-8")


def style() -> str:
    """Return the style sheet of the fragments; colours and sizes of text are the page's own."""
    return (TEMPLATES / "charts.css").read_text(encoding="utf-8")


def learning_curves(
    name: str,
    grids: Mapping[str, pd.DataFrame],
    reference_curves: pd.DataFrame,
    credits: Mapping[str, Mapping[str, str]],
    headings: Sequence[Heading],
) -> str:
    """Return a panel of learning curves for each task, of one grid or several.

    Single seeds, the mean where all seeds of a grid have a value, its band, and what was published
    by the same evaluation rule, up to our last step: references that judge are on, all others off.

    Args:
        name: begins every identifier of the fragment; letters and dashes.
        grids: rows of `curves.csv` by the name that the legend shows.
        reference_curves: rows of `reference_curves.csv`, of one grid or of several in any order.
        credits: what is known of sources, as `references.credits_of` returns it.
        headings: one per panel, in order; a task without any curve keeps its panel.

    Returns:
        The fragment.
    """
    tasks = [heading.task for heading in headings]
    ours = [Series(f"ours-{i}", key, _cycled(OURS, i)) for i, key in enumerate(grids)]
    rules = {rule for rows in grids.values() for rule in rows["rule"]}
    drawn, apart = same_rule(rules, reference_curves, tasks)
    theirs = _reference_series(drawn, credits)
    longest = max((_max(rows["wall_seconds"]) for rows in grids.values()), default=0.0)
    unit, seconds = next((u, s) for u, s in TIME_UNITS if longest >= 2.0 * s or s == 1.0)
    panels = []
    for heading in headings:
        of_task = [rows[rows["task"] == heading.task] for rows in grids.values()]
        horizon = max((_max(rows["env_steps"]) for rows in of_task), default=0.0)
        horizon = horizon or float(heading.env_steps)
        traces = []
        for source, rows in drawn[drawn["task"] == heading.task].groupby("source", sort=False):
            traces += _reference_traces(theirs[str(source)], rows, horizon)
        for series, rows in zip(ours, of_task, strict=True):
            traces += _our_traces(series, rows, seconds)
        axis = {"title": {"text": "environment steps"}, "hoverformat": ",.0f"}
        layout = {
            "xaxis": axis | ({"range": [0.0, horizon]} if horizon else {}),
            "meta": {"time": f"{unit} of wall time"},
        }
        notes = [_note(grid, rows, grids) for grid, rows in zip(grids, of_task, strict=True)]
        panels.append(
            Panel(
                *(heading.task, traces, layout, heading.remark, heading.kind),
                note="; ".join(filter(None, notes)),
            )
        )
    left_out = [f"{credits.get(source, {}).get('name', source)} ({rule})" for source, rule in apart]
    return fragment(
        name,
        panels,
        [*ours, *theirs.values()],
        "Learning curves",
        has_time=longest > 0.0,
        left_out=left_out,
    )


def fragment(
    name: str,
    panels: Sequence[Panel],
    series: Sequence[Series],
    label: str,
    *,
    has_time: bool | None = None,
    left_out: Sequence[str] = (),
) -> str:
    """Return a legend, panels and their data as HTML.

    Args:
        name: begins every identifier of the fragment; letters and dashes.
        panels: the drawings.
        series: the legend's entries.
        label: names the fragment for those who do not see it.
        has_time: None: no learning curves, so there are no switches; else whether they have times.
        left_out: names of what was left out, for its rule.
    """
    data = {
        "series": {entry.key: {"dash": entry.dash} for entry in series},
        "panels": [{"data": panel.traces, "layout": panel.layout} for panel in panels],
    }
    return (
        environment()
        .get_template("chart.html.j2")
        .render(
            name=name,
            panels=panels,
            series=series,
            label=label,
            is_curves=has_time is not None,
            has_time=has_time,
            left_out=left_out,
            data=markupsafe.Markup(as_json(data)),
        )
    )


@functools.cache
def environment() -> jinja2.Environment:
    """Return the cached template environment; it keeps the templates that it has compiled."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )


def as_json(value: object) -> str:
    """Return JSON that may stand in a script element, whatever its strings hold."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII: no U+2028 either
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def visible(text: str) -> str:
    """Replace invisible characters, which may reorder or hide others, by U+FFFD."""
    if text.isprintable():
        return text
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in hidden and c not in "\n\t" else c
        for c in text
    )


def literal(text: object) -> str:
    """Return a text that plotly shows as it stands, though it reads markup and `%{...}`."""
    return html.escape(visible(str(text)), quote=False).replace("%{", "%\N{ZERO WIDTH SPACE}{")


def trace(
    series: Series, part: str, x: Iterable[Any], y: Iterable[Any], **rest: Any
) -> dict[str, Any]:
    """Return a scatter trace of a series; its part (`mean`, `seed`, `band` ...) is its role."""
    meta = {"series": series.key, "part": part} | rest.pop("meta", {})
    base = {"type": "scatter", "name": literal(series.name), "hoverinfo": "skip", "meta": meta}
    return base | {"x": short(x), "y": short(y)} | rest


def short(values: Iterable[Any]) -> list[float | int | None]:
    """Return numbers with six significant digits, None where one is missing or not finite.

    Steps are whole and stay as they are up to 2 ** 53.
    """
    return [None if pd.isna(value) else _short(float(value)) for value in values]


def _short(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 2**53 else float(f"{value:.6g}")


def _reference_series(
    drawn: pd.DataFrame, credits: Mapping[str, Mapping[str, str]]
) -> dict[str, Series]:
    """Return the legend's entries of sources, those that judge first."""
    judges = drawn.loc[drawn["role"] == "judge", "source"].unique()
    others = [source for source in drawn["source"].unique() if source not in set(judges)]
    series = {}
    for place, source in enumerate([*judges, *others]):
        judged, known = source in judges, credits.get(source, {})
        number = drawn.loc[drawn["source"] == source, "num_runs"].max()
        colour = REFERENCE if judged and place == 0 else _cycled(OTHERS, place - (len(judges) > 0))
        later = max(0, place - len(judges))
        series[source] = Series(
            f"source-{source}",
            known.get("name", source),
            colour,
            judged,
            ("the judge, " if judged else "")
            + (counted(number, "run") if pd.notna(number) else "runs unknown"),
            {words: known[words] for words in ("paper", "code") if known.get(words)},
            "solid" if judged else DASHES[later % len(DASHES)],
        )
    return series


def _reference_traces(series: Series, rows: pd.DataFrame, horizon: float) -> list[dict[str, Any]]:
    """Return line and band of one source, up to our last step."""
    traces = []
    for _, of_one in rows.groupby(["env_id", "rule"], dropna=False, sort=False):
        points = clip_reference(of_one, horizon or math.inf)
        steps, mean, low, high = (points[name].to_numpy() for name in points)
        spread = high - mean
        if np.isfinite(spread).any() and len(steps) > 1:
            traces.append(band(series, steps, low, high))
        hover = [f" ± {number(value)}" if np.isfinite(value) else "" for value in spread]
        traces.append(
            trace(
                series,
                "mean",
                steps,
                mean,
                text=hover,
                mode="lines" if len(steps) > 1 else "markers",
                hoverinfo="all",
                hovertemplate="%{fullData.name}: <b>%{y:,.4~g}</b>%{text}"
                f" ({literal(series.remark)})<extra></extra>",
            )
        )
    return traces


def _our_traces(series: Series, curves: pd.DataFrame, seconds: float) -> list[dict[str, Any]]:
    """Return every seed as far as it goes, and mean and band where all seeds have a value."""
    if curves.empty:
        return []
    traces = []
    for _, seed in curves.sort_values("env_steps").groupby("seed"):
        seed = seed.iloc[thinned(len(seed))]
        meta = {"time": short(seed["wall_seconds"] / seconds)}
        mode = "lines" if len(seed) > 1 else "markers"
        traces.append(
            trace(series, "seed", seed["env_steps"], seed["mean_return"], meta=meta, mode=mode)
        )
    aligned = align_seeds(curves)
    num_seeds, num_points = aligned.values.shape
    if not num_points:
        return traces
    time = {"time": short(aligned.wall_seconds / seconds)}
    mean, low, high = aligned.band()
    if num_seeds > 1:
        traces.insert(0, band(series, aligned.env_steps, low, high, time["time"]))
    seeds = sorted(curves["seed"].unique())
    traces.append(
        trace(
            series,
            "mean",
            aligned.env_steps,
            mean,
            meta=time,
            mode="lines" if num_points > 1 else "markers",
            text=[_hover(seeds, values) for values in aligned.values.T],
            hoverinfo="all",
            hovertemplate="%{fullData.name}: <b>%{y:,.4~g}</b>%{text}<extra></extra>",
        )
    )
    return traces


def _note(name: str, curves: pd.DataFrame, grids: Sized) -> str:
    """Say what is missing of one grid's curves in a panel."""
    missing = "no curve recorded"
    if not curves.empty:
        missing = align_seeds(curves).remark(_max(curves["env_steps"]))
    return f"{name}: {missing}" if missing and len(grids) > 1 else missing


def _hover(seeds: Sequence[Any], values: np.ndarray) -> str:
    """Return what is said of one point of our mean: spread, seeds, and each seed's value."""
    if len(values) == 1:
        return " (1 seed)"
    each = [f"{seed}: {number(value)}" for seed, value in zip(seeds, values, strict=True)]
    rows = [" · ".join(each[first : first + 5]) for first in range(0, len(each), 5)]
    lines = [f" ± {number(values.std(ddof=1))} ({len(values)} seeds)", f"seed {rows[0]}", *rows[1:]]
    return "<br>".join(lines)


def band(
    series: Series, x: np.ndarray, low: np.ndarray, high: np.ndarray, time: list[Any] | None = None
) -> dict[str, Any]:
    """Return an area between two lines, as one closed outline."""
    known = np.isfinite(low) & np.isfinite(high)
    outline: dict[str, Any] = {"fill": "toself", "mode": "none"}
    if time is not None:
        outline["meta"] = {"time": time + time[::-1]}
    x, low, high = x[known], low[known], high[known]
    return trace(
        series, "band", np.concatenate([x, x[::-1]]), np.concatenate([low, high[::-1]]), **outline
    )


def _cycled(colours: Sequence[tuple[str, str]], place: int) -> tuple[str, str]:
    return colours[place % len(colours)]


def _max(values: pd.Series) -> float:
    """Return the largest finite value, 0 without one."""
    largest = pd.to_numeric(values, errors="coerce").max()
    return float(largest) if pd.notna(largest) and math.isfinite(largest) else 0.0
