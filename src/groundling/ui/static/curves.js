// Learning curves of the runs that the page names; they go on as long as one of the runs is live.
"use strict";
const section = document.getElementById("curves");
const runs = JSON.parse(section.dataset.runs);
const figures = JSON.parse(section.dataset.figures);
const COLOURS = ["#2563a8", "#c2571a", "#2f7d4f", "#8a3f8f", "#a08a1a", "#2b7f8c", "#b0416a"];
const SECONDS = 2;
const rows = new Map(runs.map((id) => [id, []]));
const shown = new Set(figures.slice(0, 6));

function smooth(values) {
  // A moving mean over a twentieth of the curve, as in the reports.
  const reach = Math.floor(values.length / 20);
  return values.map((_, place) => {
    const near = values.slice(Math.max(0, place - reach), place + reach + 1);
    return near.reduce((sum, value) => sum + value, 0) / near.length;
  });
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
      const there = rows.get(id).filter((row) => row[name] !== undefined);
      const steps = there.map((row) => row.step), values = there.map((row) => row[name]);
      const line = { color: COLOURS[number % COLOURS.length] };
      traces.push({ x: steps, y: values, line: { ...line, width: 1 }, opacity: 0.3, hoverinfo: "skip", showlegend: false });
      traces.push({ x: steps, y: smooth(values), line: { ...line, width: 2 }, name: id, showlegend: runs.length > 1 });
    });
    const grid = { gridcolor: colour("--line"), zeroline: false };
    Plotly.react(plot, traces, {
      title: { text: name.replaceAll("_", " "), font: { size: 13 }, x: 0.02 },
      margin: { l: 48, r: 12, t: 30, b: 30 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--text"), size: 11 }, xaxis: grid, yaxis: grid,
      legend: { orientation: "h", y: -0.2, font: { size: 10 } },
    }, { responsive: true, displayModeBar: false });
  }
}

async function update() {
  let live = false;
  for (const id of runs) {
    const known = rows.get(id);
    const answer = await fetch(`/metrics?id=${encodeURIComponent(id)}&after=${known.length}`);
    if (!answer.ok) continue;
    const told = await answer.json();
    known.push(...told.rows);
    live ||= told.live;
  }
  draw();
  if (live) setTimeout(update, SECONDS * 1000);
}

if (figures.length) {
  document.getElementById("more").addEventListener("change", (event) => {
    if (event.target.value) shown.add(event.target.value);
    event.target.value = "";
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  update();
}
