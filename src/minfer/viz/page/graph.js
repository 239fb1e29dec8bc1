// The graph as it was planned: a section a block, which opens to the nodes and their edges.
// Built once a plan; a step changes colours and times only.

import { byId, el, heat, svg, time } from "./util.js";
import { on, plan, selectNode, step, store } from "./store.js";

const NODE = { width: 112, height: 40, gapX: 18, gapY: 8, top: 14 };
const OPEN_BLOCKS = 4; // a graph of more blocks begins with its first one open

let built = null; // {plan, groups: [{name, nodes, ...}], byName}

/** Nodes in execution order, cut where the block changes; inputs are left out. */
function groupsOf(record) {
  const groups = [];
  record.nodes.forEach((node, index) => {
    if (node.op === "input") return;
    const last = groups.at(-1);
    if (last && last.layer === node.layer) last.nodes.push(index);
    else {
      const name = node.layer === null ? (groups.length ? "output" : "input") : `blk.${node.layer}`;
      groups.push({ name, layer: node.layer, nodes: [index] });
    }
  });
  return groups;
}

/** Column and row of each node of a group: its longest way from the group's entry. */
function layout(record, group) {
  const inside = new Set(group.nodes);
  const column = new Map();
  const rows = [];
  const at = new Map();
  for (const index of group.nodes) {
    const before = record.nodes[index].srcs.filter((src) => inside.has(src));
    const depth = before.length ? Math.max(...before.map((src) => column.get(src))) + 1 : 0;
    column.set(index, depth);
    rows[depth] = (rows[depth] ?? -1) + 1;
    at.set(index, {
      x: 22 + depth * (NODE.width + NODE.gapX),
      y: NODE.top + rows[depth] * (NODE.height + NODE.gapY),
    });
  }
  const width = 22 + rows.length * (NODE.width + NODE.gapX);
  const height = NODE.top + (Math.max(...rows) + 1) * (NODE.height + NODE.gapY);
  return { at, width, height };
}

/** The way of an edge; one from another block runs above the nodes. */
function edge(from, to) {
  const [x, y] = [to.x, to.y + NODE.height / 2];
  if (from) {
    const [x0, y0] = [from.x + NODE.width, from.y + NODE.height / 2];
    const bend = Math.max(12, (x - x0) / 2);
    return `M${x0},${y0} C${x0 + bend},${y0} ${x - bend},${y} ${x},${y}`;
  }
  if (x < 40) return `M0,${y} H${x}`;
  return `M0,5 H${x - 20} C${x - 8},5 ${x - 12},${y - 8} ${x},${y - 8}`;
}

function drawGroup(record, group) {
  const { at, width, height } = layout(record, group);
  const edges = svg("svg", { width, height, "aria-hidden": "true" });
  const box = el("div", { class: "canvas", style: `height:${height}px` }, edges);
  for (const index of group.nodes) {
    const node = record.nodes[index];
    const here = at.get(index);
    for (const src of node.srcs) {
      if (record.nodes[src].op === "input") continue;
      const d = edge(at.get(src), here);
      edges.append(svg("path", { d, "data-from": src, "data-to": index }));
    }
    const fused = node.op.startsWith("fused_");
    const short = node.name.replace(/^blk\.\d+\./, "");
    const button = el("button", {
      type: "button", class: "node", "data-name": node.name, "data-backend": node.backend,
      "data-fused": fused ? "" : null, "aria-pressed": "false",
      title: `${node.name}: ${node.op} on ${node.backend}`,
      style: `left:${here.x}px;top:${here.y}px;width:${NODE.width}px;height:${NODE.height}px`,
      onclick: () => selectNode(node.name),
      onkeydown: (event) => walk(event, record, index),
    }, el("b", {}, short), el("small", {}, fused ? "⊞ " : "", el("span", {}, "")));
    built.byName.set(node.name, { button, time: button.querySelector("span"), index });
    box.append(button);
  }
  return box;
}

/** Arrow keys follow the edges: left to a source, right to a reader. */
function walk(event, record, index) {
  const keys = {
    ArrowLeft: record.nodes[index].srcs.filter((src) => record.nodes[src].op !== "input").at(0),
    ArrowRight: record.readers[index].at(0),
    ArrowUp: index - 1,
    ArrowDown: index + 1,
  };
  const target = record.nodes[keys[event.key]];
  if (!target || target.op === "input") return;
  event.preventDefault();
  show(target.name);
}

/** Opens a node's block, chooses the node and moves the focus there. */
export function show(name) {
  const group = built?.groups.find((g) => g.nodes.some((i) => built.plan.nodes[i].name === name));
  if (!group) return;
  open([group], true);
  selectNode(name);
  built.byName.get(name).button.focus();
}

function open(groups, wanted) {
  let drawn = false;
  for (const group of groups) {
    if (wanted && !group.box) {
      group.box = drawGroup(built.plan, group);
      group.section.append(group.box);
      drawn = true;
    }
    if (group.box) group.box.hidden = !wanted;
    group.toggle.setAttribute("aria-expanded", String(wanted));
  }
  if (drawn) {
    paint();
    mark();
  }
}

function build(record) {
  built = { plan: record, groups: groupsOf(record), byName: new Map() };
  byId("graph").replaceChildren();
  for (const group of built.groups) {
    group.minis = group.nodes.map(() => el("i"));
    group.sum = el("span", { class: "sum" });
    group.toggle = el("button", {
      type: "button", "aria-expanded": "false",
      onclick: () => open([group], group.toggle.getAttribute("aria-expanded") !== "true"),
    }, el("span", { class: "name" }, group.name), el("span", { class: "mini" }, ...group.minis), group.sum);
    group.section = el("section", { class: "group", "data-group": group.name }, el("h3", {}, group.toggle));
    byId("graph").append(group.section);
  }
  const few = built.groups.length <= OPEN_BLOCKS + 2;
  open(built.groups.filter((g) => few || g.layer === null || g.layer === 0), true);
  legend(record);
}

function legend(record) {
  const backends = [...new Set(record.nodes.map((n) => n.backend).filter(Boolean))];
  const entries = backends.map((name) =>
    el("span", {}, el("i", { style: `background:var(--${name})` }), name));
  const fused = record.nodes.some((n) => n.op.startsWith("fused_"));
  if (fused) entries.push(el("span", {}, "⊞ fused"));
  entries.push(el("span", {}, el("i", { style: `background:${heat(0.02)}` }), "little"));
  entries.push(el("span", {}, el("i", { style: `background:${heat(1)}` }), "much"));
  byId("legend").replaceChildren(...entries);
}

const MEASURES = {
  us: (done) => done.us,
  rate: (done) => (done.us ? done.nbytes / done.us : 0),
  flops: (done) => (done.us ? done.flops / done.us : 0),
  rms: (done) => done.rms ?? 0,
};

/** Colours and times of the chosen step. */
function paint() {
  const current = step();
  if (!current || !built) return;
  const measure = MEASURES[byId("heat").value];
  const most = Math.max(...current.nodes.map(measure)) || 1;
  for (const group of built.groups) {
    let sum = 0;
    group.nodes.forEach((index, i) => {
      const done = current.byNode.get(index);
      if (!done) return;
      sum += done.us;
      const colour = heat(measure(done) / most);
      group.minis[i].style.setProperty("--heat", colour);
      const entry = built.byName.get(built.plan.nodes[index].name);
      if (!entry) return;
      entry.button.style.setProperty("--heat", colour);
      entry.time.textContent = time(done.us);
      entry.button.toggleAttribute("data-bad", done.nans + done.infs > 0);
    });
    group.sum.textContent = `${time(sum)} · ${Math.round((100 * sum) / current.us)} %`;
  }
}

/** The chosen node, its neighbours and the edges between them. */
function mark() {
  if (!built) return;
  const name = store.selected.node;
  const chosen = built.plan.index.get(name);
  const near = new Set(chosen === undefined ? []
    : [...built.plan.nodes[chosen].srcs, ...built.plan.readers[chosen]]);
  for (const [other, { button, index }] of built.byName) {
    button.setAttribute("aria-pressed", String(other === name));
    button.classList.toggle("near", near.has(index));
  }
  for (const path of byId("graph").querySelectorAll("path")) {
    const ends = [Number(path.dataset.from), Number(path.dataset.to)];
    path.classList.toggle("on", ends.includes(chosen));
  }
}

export function start() {
  on("step", () => {
    const record = plan();
    if (record && built?.plan !== record) {
      build(record);
      mark();
    }
    paint();
  });
  on("node", mark);
  byId("heat").addEventListener("change", paint);
  byId("open-all").addEventListener("click", () => built && open(built.groups, true));
  byId("close-all").addEventListener("click", () => built && open(built.groups, false));
}
