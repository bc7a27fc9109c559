"""Interactive charts, drawn by plotly express from the frames of `frames`.

A function here returns plotly figures, and `fragment` the HTML of one. A page needs two scripts
once, plotly's own and `script()`; nothing is asked of a network. Names come from files and are
hostile: plotly reads a little markup in texts, so every text of a frame is escaped.
"""

import functools
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import markupsafe
import pandas as pd
import plotly.express as px
import plotly.io as pio
from plotly.graph_objects import Figure
from plotly.io.json import to_json_plotly

from reproduce.report import frames
from reproduce.words import number, visible

TEMPLATES = Path(__file__).parent / "templates"
PANEL, ROW, BESIDE = 330, 46, 100
"""Pixels of a panel of curves, of a row of scores, and of what stands above and below them."""
BARE = "none"
"""No theme: a page has two of its own, and building one takes a tenth of the time."""
IMPROVED = "P(ours > reference), with 95 % of its resamples"


@functools.cache
def script() -> str:
    """Return the script that draws the fragments of a page; it comes after them and plotly's."""
    names = {"light": "plotly_white", "dark": "plotly_dark"}
    themes = {theme: pio.templates[name].to_plotly_json() for theme, name in names.items()}
    own = (TEMPLATES / "charts.js").read_text(encoding="utf-8")
    return f"const themes = {to_json_plotly(themes)};\n{own}"


def curves_chart(curves: pd.DataFrame, remarks: Mapping[str, str]) -> Figure:
    """Return a panel per task of a frame `CURVES`, over steps or wall time, with or without bands.

    Every seed, mean and band of ours and the judge are on, other sources off.
    """
    longest, units = curves["wall_time"].max(), {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
    unit = next((unit for unit, length in units.items() if longest >= 2.0 * length), "seconds")
    frame = curves.assign(wall_time=curves["wall_time"] / units[unit])
    tasks = {_literal(task): remarks.get(task, "") for task in frame["task"].unique()}
    rows = -(-len(tasks) // 3)
    options: dict[str, Any] = {"y": "mean_return", "labels": {"mean_return": "episode return"}}
    options |= {"facet_col": "task", "facet_col_wrap": 3, "facet_col_spacing": 0.06}
    options |= {"facet_row_spacing": 0.3 / rows, "height": rows * PANEL + BESIDE + 70}
    options["category_orders"] = {"task": list(tasks)}
    figure = _lines(frame, x="env_steps", also=("wall_time",), **options)
    for title in figure.select_annotations():
        task = title.text.removeprefix("task=")
        said = _literal(tasks[task]).replace("\n", "<br>")
        title.update(text=f"<b>{task}</b><br>{said}", align="left")
    figure.update_xaxes(matches=None, showticklabels=True, rangemode="tozero", hoverformat=",.4~r")
    figure.update_yaxes(matches=None, showticklabels=True)
    titled = [f"{axis.plotly_name}.title.text" for axis in figure.select_xaxes() if axis.title.text]
    labels = {"steps": "environment steps", "wall time": f"{unit} of wall time, ours alone"}
    figure.update_layout(
        dict.fromkeys((name.replace(".", "_") for name in titled), labels["steps"])
    )
    buttons, traces = [], _traces(figure)
    steps = [trace.x.tolist() for trace in traces]
    times = [trace.customdata[:, 3].tolist() for trace in traces]
    for (name, label), x in zip(labels.items(), (steps, times), strict=True):
        args = [{"x": x}, dict.fromkeys(titled, label)]
        buttons.append({"label": name, "method": "update", "args": args})
    for trace in traces:
        trace.customdata = trace.customdata[:, :3]
    place = {"x": 0.0, "y": 1 + 45 / (rows * PANEL), "xanchor": "left", "yanchor": "bottom"}
    look = {"bgcolor": "#CBD3DA", "font": {"color": "#1D2329"}}  # in both themes
    menu = {"type": "buttons", "direction": "right", "buttons": buttons, **look, **place}
    menus = [menu] if curves["wall_time"].notna().any() else []
    figure.update_layout(hovermode="x unified", updatemenus=menus, margin_t=BESIDE + 30)
    return figure.update_layout(legend_y=1 + 90 / (rows * PANEL))


def scores_charts(scores: pd.DataFrame) -> list[Figure]:
    """Return runs beside means and intervals of a frame `SCORES`, a figure for each axis."""
    rows = scores.assign(more=scores["upper"] - scores["value"])
    rows = _escaped(rows.assign(less=scores["value"] - scores["lower"]))
    colours = {_literal(source): colour for source, colour in frames.looks(scores)[0].items()}
    options: dict[str, Any] = {"x": "value", "y": "task", "color": "source", "symbol": "kind"}
    options |= {"error_x": "more", "error_x_minus": "less", "custom_data": ["seed", "score"]}
    options |= {"symbol_map": {"run": "circle", "mean": "diamond"}, "color_discrete_map": colours}
    options["template"] = BARE
    hover = "%{y}, %{fullData.name} %{customdata[0]}: <b>%{customdata[1]:,.4~r}</b><extra></extra>"
    marks = {frames.NORMALISED: {0.0: "solid", 0.9: "dash", 1.0: "solid"}, IMPROVED: {0.5: "solid"}}
    drawn = []
    for axis in scores["axis"].unique():
        of_axis = rows[scores["axis"] == axis]
        figure = px.scatter(of_axis, opacity=0.7, **options)
        figure.update_traces(hovertemplate=hover, orientation="h")
        for trace in _traces(figure):  # one line for each source
            source, _, kind = trace.name.rpartition(", ")
            trace.update(offsetgroup=source, marker_size=12 if kind == "mean" else 8)
        for place, dash in marks.get(axis, {}).items():
            figure.add_vline(place, line={"color": "grey", "width": 1, "dash": dash})
        drawn.append(_rows(figure, _literal(axis), of_axis["task"].nunique()))
    return drawn


def profile_chart(profile: pd.DataFrame) -> Figure:
    """Return the performance profile of each side with its band (Agarwal et al. 2021)."""
    labels = {"x": "normalised score", "value": "share of runs above it"}
    rows, look = frames.labelled(profile), {"labels": labels, "height": 400}
    figure = _lines(rows, x="x", y="value", band="95 % of the resamples", **look)
    return figure.update_xaxes(hoverformat=".3~r").update_layout(hovermode="x unified")


def improvement_charts(improvement: pd.DataFrame) -> list[Figure]:
    """Return the probability of improvement of each task and its mean."""
    rows = frames.labelled(improvement.assign(role="ours"))
    counts = zip(rows["num_seeds"].map(number), rows["num_runs"].map(number), strict=True)
    seeds = [f"of {ours} runs against {theirs}" for ours, theirs in counts]
    rows = rows.assign(axis=IMPROVED, seed=seeds, task=rows["label"], score=rows["value"])
    return scores_charts(frames.checked(rows, frames.SCORES))


def throughput_charts(throughput: pd.DataFrame) -> list[Figure]:
    """Return the speed of every run and the mean shares of wall time, by task and device."""
    rows = throughput.assign(source=throughput["device"].fillna("unknown"), role="ours", kind="run")
    rows["value"] = rows["score"] = rows["env_steps_per_second"]
    rows = rows.assign(axis="environment steps per second", lower=None, upper=None)
    shares = _escaped(frames.mean_shares(rows, ["task", "source"]))
    options: Any = {"color": "part", "color_discrete_map": frames.PARTS, "pattern_shape": "source"}
    options["template"] = BARE
    figure = px.bar(shares, x="share", y="task", **options).update_xaxes(tickformat=".0%")
    figure = _rows(figure, "share of wall time", shares["task"].nunique())
    return [*scores_charts(frames.checked(rows, frames.SCORES)), figure]


def fragment(figure: Figure) -> markupsafe.Markup:
    """Return a figure as HTML: a place that `script` fills, and its JSON."""
    clear: dict[str, Any] = dict.fromkeys(("paper_bgcolor", "plot_bgcolor"), "rgba(0,0,0,0)")
    bar = {"bgcolor": "rgba(0,0,0,0)", "color": "grey", "activecolor": frames.PALETTES["ours"][0]}
    above = {"t": figure.layout.margin.t or 60, "b": 40, "l": 0, "r": 10}
    legend = {"orientation": "h", "title": None, "yanchor": "bottom"}
    legend["y"] = figure.layout.legend.y or 1.0
    figure.update_layout(template=None, legend=legend, modebar=bar, margin=above, **clear)
    figure.update_xaxes(automargin=True).update_yaxes(automargin=True)
    text = (
        '<div class="chart"><div class="plot" style="height: {}px"></div>\n'
        '<script type="application/json">{}</script></div>'
    )
    data = markupsafe.Markup(pio.to_json(figure, engine="json"))
    return markupsafe.Markup(text).format(figure.layout.height, data)


def _lines(
    frame: pd.DataFrame,
    x: str,
    y: str,
    band: str = "± std",
    also: Sequence[str] = (),
    **options: Any,
) -> Figure:
    """Return lines of means, thin ones of seeds, and areas between lower and upper.

    Data of a line are seed, lower and upper end, and the columns `also`.
    """
    colours, dashes = frames.looks(frame)
    bands = frame.dropna(subset="lower").assign(kind="band")
    ends = [bands.assign(**{y: bands["upper"]}), bands.iloc[::-1].assign(**{y: bands["lower"]})]
    rows = pd.concat([*ends, frame])
    parts = {"seed": ": each seed", "band": f": {band}", "mean": ""}
    rows["line"] = rows["source"] + rows["kind"].map(parts)
    rows["colour"], rows["dash"] = rows["source"].map(colours), rows["source"].map(dashes)
    rows = _escaped(rows)
    each = rows.drop_duplicates("line").set_index("line")
    options |= {"color_discrete_map": dict(each["colour"]), "line_dash_map": dict(each["dash"])}
    options |= {"color": "line", "line_dash": "line", "line_group": "seed", "render_mode": "svg"}
    options["template"] = BARE
    figure = px.line(rows, x=x, y=y, custom_data=["seed", "lower", "upper", *also], **options)
    hover = {"seed": "%{y:,.4~r} (seed %{customdata[0]})", "band": None, "bare": "%{y:,.4~r}"}
    hover["mean"] = "%{y:,.4~r} [%{customdata[1]:,.4~r}, %{customdata[2]:,.4~r}]"
    styles: dict[str, Any] = {"seed": {"line_width": 1, "opacity": 0.5}, "mean": {"line_width": 2}}
    styles["band"] = {"fill": "toself", "line_width": 0, "opacity": 0.3, "hoverinfo": "skip"}
    for trace in _traces(figure):
        look: Any = each.loc[trace.name]
        kind = "bare" if look["kind"] == "mean" and pd.isna(look["lower"]) else look["kind"]
        trace.update(hovertemplate=hover[kind], **styles[look["kind"]])
        trace.visible = "legendonly" if look["role"] == "context" else True
    return figure


def _traces(figure: Figure) -> list[Any]:
    return list(figure.data)


def _rows(figure: Figure, title: str, num_rows: int) -> Figure:
    """Arrange a chart with a row for each task, from the top."""
    figure.update_yaxes(autorange="reversed", title="").update_xaxes(title=title)
    return figure.update_layout(height=ROW * num_rows + BESIDE, scattermode="group")


def _escaped(frame: pd.DataFrame) -> pd.DataFrame:
    texts = frame.select_dtypes(["str", "object"]).fillna("").astype(str)
    return frame.assign(**{str(name): texts[name].map(_literal) for name in texts})


def _literal(text: str) -> str:
    """Return a text that plotly shows as it stands, though it reads markup and `%{...}`."""
    return html.escape(visible(text), quote=False).replace("%{", "%\N{ZERO WIDTH SPACE}{")
