// Draw the learning curves of the page's runs, and refresh them while any of the runs is live.
"use strict";
const section = document.getElementById("curves");
const runs = JSON.parse(section.dataset.runs);
const figures = JSON.parse(section.dataset.figures);
const COLOURS = ["#2563a8", "#c2571a", "#2f7d4f", "#8a3f8f", "#a08a1a", "#2b7f8c", "#b0416a"];
const SECONDS = 2;
const drawn = new Map(runs.map((id) => [id, { rows: 0, curves: {} }]));
const shown = new Set(figures.slice(0, 6));

function plain(text) {
  // Plotly interprets some HTML in titles and names, such as links.
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function draw() {
  const plots = document.getElementById("plots");
  for (const name of shown) {
    let plot = document.getElementById("plot-" + name);
    if (!plot) {
      plot = document.createElement("div");
      plot.className = "plot";
      plot.id = "plot-" + name;
      plots.append(plot);
    }
    const traces = [];
    runs.forEach((id, number) => {
      const curve = drawn.get(id).curves[name];
      if (!curve) return;
      const line = { color: COLOURS[number % COLOURS.length] };
      traces.push({ x: curve.x, y: curve.y, line: { ...line, width: 1 }, opacity: 0.3, hoverinfo: "skip", showlegend: false });
      traces.push({ x: curve.smooth_x, y: curve.smooth_y, line: { ...line, width: 2 }, name: plain(id), showlegend: runs.length > 1 });
    });
    const grid = { gridcolor: colour("--line"), zeroline: false };
    Plotly.react(plot, traces, {
      title: { text: plain(name.replaceAll("_", " ")), font: { size: 13 }, x: 0.02 },
      margin: { l: 48, r: 12, t: 30, b: 30 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--text"), size: 11 }, xaxis: grid, yaxis: grid,
      legend: { orientation: "h", y: -0.2, font: { size: 10 } },
    }, { responsive: true, displayModeBar: false });
  }
}

async function fetchCurves() {
  let live = false;
  for (const id of runs) {
    const known = drawn.get(id);
    const query = new URLSearchParams([["id", id], ["rows", known.rows], ...[...shown].map((name) => ["figure", name])]);
    const answer = await fetch(`/metrics?${query}`);
    if (!answer.ok) continue;
    const latest = await answer.json();
    if (latest.curves) drawn.set(id, latest);
    live ||= latest.live;
  }
  draw();
  return live;
}

async function update() {
  if (await fetchCurves()) setTimeout(update, SECONDS * 1000);
}

if (figures.length) {
  document.getElementById("more").addEventListener("change", (event) => {
    if (event.target.value) shown.add(event.target.value);
    event.target.value = "";
    for (const known of drawn.values()) known.rows = 0;
    fetchCurves();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  update();
}
