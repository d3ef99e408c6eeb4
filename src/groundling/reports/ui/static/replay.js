// Replay an episode step by step with the buttons, the slider or the arrow keys.
"use strict";
const replay = document.getElementById("replay");
const moments = JSON.parse(replay.dataset.moments);
const [slider, position, picture] = ["place", "position", "picture"].map((id) => document.getElementById(id));
let playing = null;

function element(kind, text, parent) {
  const made = document.createElement(kind);
  made.textContent = text;
  parent.append(made);
  return made;
}

function show(place) {
  const moment = moments[place];
  if (!moment) return;
  slider.value = place;
  position.textContent = `step ${place + 1} of ${moments.length}`;
  picture.hidden = !moment.picture;
  if (moment.picture) picture.src = moment.picture;
  const lines = document.getElementById("lines"), bars = document.getElementById("bars");
  lines.replaceChildren();
  bars.replaceChildren();
  for (const line of moment.lines) element("li", line, lines);
  const probabilities = moment.probabilities.length ? moment.probabilities : moment.action ? [[moment.action, null]] : [];
  for (const [action, probability] of probabilities) {
    const bar = element("div", "", bars);
    bar.className = action === moment.action ? "bar chosen" : "bar";
    element("span", action, bar).title = action;
    element("i", "", bar).style.width = `${100 * (probability ?? 0)}%`;
    element("span", probability === null ? "" : probability.toFixed(2), bar);
  }
  document.getElementById("read").hidden = !moment.prompt;
  document.getElementById("prompt").textContent = moment.prompt ?? "";
}

function go(by) {
  show(Math.min(Math.max(Number(slider.value) + by, 0), moments.length - 1));
}

function toggle() {
  const button = document.getElementById("play");
  if (playing !== null) {
    clearInterval(playing);
    playing = null;
  } else {
    if (Number(slider.value) >= moments.length - 1) show(0);
    playing = setInterval(() => (Number(slider.value) >= moments.length - 1 ? toggle() : go(1)), 500);
  }
  button.textContent = playing === null ? "▶ play" : "⏸ pause";
}

document.getElementById("back").addEventListener("click", () => go(-1));
document.getElementById("on").addEventListener("click", () => go(1));
document.getElementById("play").addEventListener("click", toggle);
slider.addEventListener("input", () => show(Number(slider.value)));
document.addEventListener("keydown", (event) => {
  if (event.target === slider) return;
  if (event.key === "ArrowLeft") go(-1);
  if (event.key === "ArrowRight") go(1);
});
show(0);
