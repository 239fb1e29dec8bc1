// The attention weights of a head as a square: a row a token, a column what it looks at.

import { byId, shown, sized, style } from "./util.js";
import { on, store } from "./store.js";

const LABELS = 48; // tokens up to which they are written beside the square
let latest = null;

function draw() {
  if (!latest || byId("view-attention").hidden) return;
  const n = latest.weights.length;
  const labelled = n <= LABELS;
  const margin = labelled ? 110 : 4;
  const room = Math.min(byId("views").clientWidth, 760) - margin;
  const cell = Math.max(1, Math.floor(room / n));
  const context = sized(byId("attention"), margin + n * cell, margin + n * cell);
  context.fillStyle = style("--card");
  context.fillRect(0, 0, margin + n * cell, margin + n * cell);
  latest.weights.forEach((row, i) => row.forEach((weight, j) => {
    context.globalAlpha = Math.sqrt(weight);
    context.fillStyle = style("--hot");
    context.fillRect(margin + j * cell, margin + i * cell, cell, cell);
  }));
  context.globalAlpha = 1;
  if (!labelled) return;
  context.fillStyle = style("--ink");
  context.font = `${Math.min(13, cell)}px ui-monospace, monospace`;
  latest.texts.forEach((text, i) => {
    context.textAlign = "right";
    context.fillText(shown(text).slice(0, 12), margin - 5, margin + (i + 0.8) * cell);
    context.save();
    context.translate(margin + (i + 0.8) * cell, margin - 5);
    context.rotate(-Math.PI / 2);
    context.textAlign = "left";
    context.fillText(shown(text).slice(0, 12), 0, 0);
    context.restore();
  });
}

async function ask(event) {
  event.preventDefault();
  const [layer, head] = [byId("layer").value, byId("head").value];
  const text = byId("attention-text");
  text.textContent = "computing";
  const reply = await fetch(`attention?layer=${layer}&head=${head}`);
  const found = await reply.json();
  if (!reply.ok) {
    text.textContent = found.error;
    return;
  }
  latest = found;
  text.textContent = summary(found, layer, head);
  draw();
}

/** The picture in words. */
function summary(found, layer, head) {
  const last = found.weights.at(-1);
  const best = last.indexOf(Math.max(...last));
  return `Layer ${layer}, head ${head}: the last token ${JSON.stringify(found.texts.at(-1))} looks `
    + `most at ${JSON.stringify(found.texts[best])} (${Math.round(100 * last[best])} %).`;
}

export function start() {
  byId("attention-form").addEventListener("submit", ask);
  on("view", draw);
  on("model", () => {
    byId("layer").max = store.facts.n_layers - 1;
    byId("head").max = store.facts.n_heads - 1;
  });
}
