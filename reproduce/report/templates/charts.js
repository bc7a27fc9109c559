// Draws every `.plot` of the page from the JSON after it, in the theme of its reader.
"use strict";
(() => {
  const plots = [...document.querySelectorAll(".plot")];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => themes[dark.matches ? "dark" : "light"];
  const config = {
    displaylogo: false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    plotlyServerURL: "", // nothing is sent anywhere
    responsive: true,
    toImageButtonOptions: { format: "svg" },
  };
  for (const plot of plots) {
    const { data, layout } = JSON.parse(plot.nextElementSibling.textContent);
    layout.dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom"; // a finger scrolls
    Plotly.newPlot(plot, data, { ...layout, template: theme() }, config);
  }
  const dress = (template) => plots.forEach((plot) => Plotly.relayout(plot, { template }));
  dark.addEventListener("change", () => dress(theme()));
  addEventListener("beforeprint", () => dress(themes.light));
  addEventListener("afterprint", () => dress(theme()));
})();
