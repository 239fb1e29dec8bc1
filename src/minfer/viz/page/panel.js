// The panel beside the views: what the chosen node is and did, or what a token could have been.

import { byId, bytes, el, number, shown, svg, time } from "./util.js";
import { done, on, plan, step, store } from "./store.js";
import { show } from "./graph.js";

function facts(rows) {
  const list = el("dl");
  for (const [name, value, field] of rows) {
    list.append(el("dt", {}, name), el("dd", { "data-field": field ?? name }, value));
  }
  return list;
}

function links(title, names) {
  if (!names.length) return [];
  const buttons = names.map((name) =>
    el("button", { type: "button", onclick: () => show(name) }, name));
  return [el("h3", {}, title), el("div", { class: "links" }, ...buttons)];
}

function histogram(record) {
  if (!record.histogram?.length) return [];
  const most = Math.max(...record.histogram);
  const picture = svg("svg", {
    viewBox: `0 0 ${record.histogram.length} 1`, preserveAspectRatio: "none", role: "img",
    "aria-label": `Histogram of values from ${number(record.low)} to ${number(record.high)}`,
  });
  record.histogram.forEach((count, i) => {
    // a square root, or the many small values would hide the few large ones
    const height = Math.sqrt(count / most);
    picture.append(svg("rect", { x: i + 0.08, width: 0.84, y: 1 - height, height }));
  });
  const axis = el("div", { class: "axis" }, el("span", {}, number(record.low)),
    el("span", {}, "√ of counts"), el("span", {}, number(record.high)));
  return [el("h3", {}, "Values"), picture, axis];
}

/** The node's time over the steps of the same plan. */
function history(name) {
  const current = step();
  const index = plan().index.get(name);
  const times = store.steps.filter((s) => s.plan === current.plan).map((s) => s.byNode.get(index)?.us ?? 0);
  if (times.length < 3) return [];
  const most = Math.max(...times) || 1;
  const points = times.map((us, i) => `${i},${1 - us / most}`).join(" ");
  const picture = svg("svg", {
    viewBox: `0 0 ${times.length - 1} 1`, preserveAspectRatio: "none", role: "img",
    "aria-label": "Time over the steps",
  });
  picture.append(svg("polyline", { points }));
  const axis = el("div", { class: "axis" }, el("span", {}, `${times.length} steps`),
    el("span", {}, `at most ${time(most)}`));
  return [el("h3", {}, "Time, step by step"), picture, axis];
}

function node(name) {
  const record = plan();
  const index = record?.index.get(name);
  if (index === undefined) return [el("p", { class: "hint" }, `${name} is not in this step's plan.`)];
  const planned = record.nodes[index];
  const what = [
    ["op", planned.op],
    ["backend", planned.backend],
    ["shape", planned.shape.join(" × ")],
    ...Object.entries(planned.weights).map(([weight, type]) => [weight, type, "weight"]),
  ];
  const parts = [el("h2", {}, name), facts(what)];
  const did = done(name);
  if (did) {
    parts.push(el("h3", {}, `Step ${step().n}`), facts([
      ["time", time(did.us), "us"],
      ["moves", bytes(did.nbytes), "nbytes"],
      ["speed", `${number(did.nbytes / did.us / 1e3)} GB/s`, "rate"],
      ["computes", `${number(did.flops / did.us / 1e3)} GFLOP/s`, "flops"],
      ["rows", number(did.rows), "rows"],
      ["min", number(did.low), "low"],
      ["max", number(did.high), "high"],
      ["mean", number(did.mean), "mean"],
      ["rms", number(did.rms), "rms"],
      ["NaN", number(did.nans), "nans"],
      ["infinite", number(did.infs), "infs"],
    ]), ...histogram(did));
    if (did.sample.length) {
      parts.push(el("h3", {}, "Sample"), el("code", {}, did.sample.map(Number).map(number).join("  ")));
    }
    parts.push(...history(name));
  }
  const inputs = planned.srcs.map((i) => record.nodes[i]).filter((n) => n.op !== "input");
  parts.push(...links("Reads", inputs.map((n) => n.name)));
  parts.push(...links("Read by", record.readers[index].map((i) => record.nodes[i].name)));
  return parts;
}

/** The most likely next tokens of the chosen step. */
function candidates() {
  const current = step();
  if (!current?.top.length) return [];
  const parts = [el("h2", {}, `Candidates after step ${current.n}`)];
  for (const row of current.top) {
    const list = el("ol", { class: "candidates" });
    for (const [token, text, logit, probability] of row) {
      list.append(el("li", { title: `token ${token}, logit ${number(logit)}` },
        el("code", {}, shown(text)),
        el("span", {}, el("div", { class: "bar", style: `width:${100 * probability}%` })),
        el("span", {}, `${(100 * probability).toFixed(1)} %`)));
    }
    parts.push(list);
  }
  return parts;
}

function draw() {
  const chosen = store.selected.node;
  const parts = [...candidates()];
  if (chosen) parts.unshift(...node(chosen));
  if (!parts.length) parts.push(el("p", { class: "hint" }, "Choose a node, a token, or a bar of the time line."));
  byId("panel").replaceChildren(...parts);
}

export function start() {
  on("step", draw);
  on("node", draw);
}
