// A step as a line of time: a track a backend, a bar a node, coloured by op.

import { byId, el, sized, style, time } from "./util.js";
import { on, plan, selectNode, step, store } from "./store.js";

const TRACK = 34;
const TOP = 22;
let bars = []; // what was drawn, for the mouse: {x, width, y, name}

const hue = (op) => [...op].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) % 360, 7);

function draw() {
  const current = step();
  if (byId("view-timeline").hidden || !current) return;
  const record = plan();
  const box = byId("timeline-scroll");
  const starts = packed(current.nodes);
  const whole = Math.max(...current.nodes.map((n, i) => starts[i] + n.us));
  const width = Math.max(300, box.clientWidth) * Number(byId("zoom").value);
  const backends = [...new Set(record.nodes.map((n) => n.backend).filter(Boolean))];
  const context = sized(byId("timeline"), Math.min(width, 30000), TOP + backends.length * TRACK + 8);
  const scale = Math.min(width, 30000) / whole;
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = style("--dim");
  const every = niceStep(whole / (width / 90));
  for (let at = 0; at < whole; at += every) {
    context.fillText(time(at), at * scale + 3, 14);
    context.fillRect(at * scale, 0, 1, TOP + backends.length * TRACK);
  }
  bars = [];
  for (const [i, node] of current.nodes.entries()) {
    const planned = record.nodes[node.node];
    const bar = {
      x: starts[i] * scale, width: Math.max(1, node.us * scale),
      y: TOP + backends.indexOf(planned.backend) * TRACK, name: planned.name,
    };
    context.fillStyle = `hsl(${hue(planned.op)} 60% 52%)`;
    context.fillRect(bar.x, bar.y, bar.width, TRACK - 6);
    if (planned.name === store.selected.node) {
      context.strokeStyle = style("--ink");
      context.lineWidth = 2;
      context.strokeRect(bar.x, bar.y, bar.width, TRACK - 6);
    }
    if (bar.width > 60) {
      context.save();
      context.beginPath();
      context.rect(bar.x, bar.y, bar.width - 4, TRACK);
      context.clip();
      context.fillStyle = "#fff";
      context.fillText(planned.name, bar.x + 4, bar.y + 17);
      context.restore();
    }
    bars.push(bar);
  }
  const busy = current.us / (current.seconds * 1e6);
  byId("timeline-text").textContent =
    `${time(current.us)} in nodes, ${Math.round(100 * busy)} % of the traced step`;
  longest(current, record);
}

/** When each node begins: as it was traced, or one after another, without the waits of tracing. */
function packed(nodes) {
  if (!byId("packed").checked) return nodes.map((node) => node.at_us);
  let at = 0;
  return nodes.map((node) => (at += node.us) - node.us);
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= least);
}

/** The same in words: what takes longest, by op. */
function longest(current, record) {
  const sorted = [...current.nodes].sort((a, b) => b.us - a.us).slice(0, 10);
  byId("longest").replaceChildren(...sorted.map((node) => {
    const planned = record.nodes[node.node];
    const share = Math.round((100 * node.us) / current.us);
    return el("li", {},
      el("button", { type: "button", onclick: () => selectNode(planned.name) }, planned.name),
      ` ${planned.op}, ${time(node.us)}, ${share} %`);
  }));
}

function at(event) {
  const box = byId("timeline").getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  return bars.find((bar) =>
    x >= bar.x - 1 && x <= bar.x + bar.width + 1 && y >= bar.y && y <= bar.y + TRACK);
}

export function start() {
  on("step", draw);
  on("node", draw);
  on("view", draw);
  byId("zoom").addEventListener("input", draw);
  byId("packed").addEventListener("change", draw);
  window.addEventListener("resize", draw);
  byId("timeline").addEventListener("click", (event) => {
    const bar = at(event);
    if (bar) selectNode(bar.name);
  });
  byId("timeline").addEventListener("mousemove", (event) => {
    byId("timeline").title = at(event)?.name ?? "";
  });
}
