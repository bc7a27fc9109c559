// Draws every `.chart` of the page from its JSON, and again when a switch or the theme changes.
"use strict";
(() => {
  const ink = (element, name = "color") => getComputedStyle(element)[name];
  const faded = (colour, alpha) => colour.replace(/^rgb\((.*)\)$/, `rgba($1, ${alpha})`);
  const touched = matchMedia("(pointer: coarse)");
  const config = {
    displaylogo: false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    plotlyServerURL: "", // nothing is sent anywhere
    responsive: true,
    showSendToCloud: false,
  };

  const layer = ({ meta }) => ["band", "seed"].indexOf(meta.part) + 1 || 3; // bands lie below lines

  function dressed(trace, colour, dash) {
    const { part } = trace.meta;
    const marker = { color: colour, ...trace.marker };
    if (part === "band") return { ...trace, fillcolor: faded(colour, 0.2) };
    if (part === "bar") return { ...trace, marker };
    const width = { seed: 1, mean: dash === "solid" ? 2.6 : 1.8, interval: 3 }[part] ?? 1.6;
    const line = { color: colour, width, dash };
    return { ...trace, marker, line, opacity: part === "seed" ? 0.4 : 1 };
  }

  function timed(trace) { // drawn over the times, it says the step in its hover text
    const hovertemplate = trace.hovertemplate?.replace(":", " at %{customdata:,} steps:");
    return { ...trace, x: trace.meta.time, customdata: trace.x, hovertemplate };
  }

  function drawn(panel, state) {
    return panel.data
      .filter(({ meta }) => state.series[meta.series]?.on && state.parts[meta.part] !== false)
      .filter(({ meta }) => !state.time || meta.time)
      .sort((one, other) => layer(one) - layer(other))
      .map((trace) => {
        const { colour, dash } = state.series[trace.meta.series];
        return dressed(state.time ? timed(trace) : trace, colour, dash);
      });
  }

  function arranged(panel, state, chart) {
    const line = ink(chart.querySelector(".grid-ink"));
    const faint = ink(chart.querySelector(".faint-ink"));
    const lines = { gridcolor: line, linecolor: line, zerolinecolor: line };
    const axis = { ...lines, automargin: true, tickfont: { color: faint } };
    const layout = structuredClone(panel.layout);
    const { xaxis = {}, yaxis = {}, ...rest } = layout;
    if (state.time) {
      xaxis.title = { text: layout.meta.time };
      delete xaxis.range;
      xaxis.rangemode = "tozero";
      xaxis.hoverformat = ".3~g";
    }
    if (state.log) {
      xaxis.type = "log";
      xaxis.dtick = "D2";
      delete xaxis.range;
    }
    for (const each of [xaxis, yaxis]) {
      each.title = { font: { color: faint, size: 12 }, standoff: 8, ...each.title };
    }
    return {
      margin: { l: 48, r: 10, t: 8, b: 42 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink(chart), family: ink(chart, "fontFamily"), size: 12 },
      hoverlabel: {
        bgcolor: ink(chart.querySelector(".panel-ink")),
        bordercolor: line,
        font: { color: ink(chart), size: 12 },
        namelength: -1,
      },
      hovermode: "x unified",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: faint, activecolor: ink(chart) },
      showlegend: false,
      dragmode: touched.matches ? false : "zoom", // a finger scrolls the page
      uirevision: `${state.time}, ${state.log}`, // other switches leave the zoom alone
      ...rest,
      xaxis: { ...axis, showgrid: false, zeroline: false, ...xaxis },
      yaxis: { ...axis, ...yaxis },
    };
  }

  function paint(chart) {
    const { series, panels } = chart.content;
    const checked = (name) => chart.querySelector(`[name="${chart.id}-${name}"]:checked`)?.value;
    const [time, log] = [checked("axis") === "time", checked("scale") === "log"];
    const state = { time, log, series: {}, parts: {} };
    for (const { dataset, checked: on } of chart.querySelectorAll("[data-part]")) {
      state.parts[dataset.part] = on;
    }
    for (const input of chart.querySelectorAll("[data-series]")) {
      const colour = ink(input.parentElement.querySelector(".swatch"));
      const key = input.dataset.series;
      state.series[key] = { ...series[key], on: input.checked, colour };
    }
    const note = document.getElementById(`${chart.id}-timeless`);
    if (note) note.hidden = !state.time;
    panels.forEach((panel, place) => {
      const target = document.getElementById(`${chart.id}-${place}`);
      const image = { toImageButtonOptions: { format: "svg", filename: target.id } };
      const options = { ...config, ...image };
      Plotly.react(target, drawn(panel, state), arranged(panel, state, chart), options);
    });
  }

  const charts = [...document.querySelectorAll(".chart")];
  for (const chart of charts) {
    chart.content = JSON.parse(chart.querySelector("script").textContent);
    for (const name of ["grid-ink", "faint-ink", "panel-ink"]) {
      const probe = document.createElement("i"); // has a colour of the page's, and no size
      probe.className = name;
      probe.hidden = true;
      chart.append(probe);
    }
    chart.addEventListener("change", () => paint(chart));
  }
  const paintAll = () => charts.forEach(paint);
  paintAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintAll);
  document.addEventListener("theme", paintAll);
  const root = document.documentElement.style;
  let before = "";
  const dress = (scheme) => { root.colorScheme = scheme; paintAll(); };
  addEventListener("beforeprint", () => { before = root.colorScheme; dress("light"); });
  addEventListener("afterprint", () => dress(before));
})();
