// Two traces beside each other: how far each node is apart, and where they part.

import { byId, el, number } from "./util.js";
import { show } from "./graph.js";

const TOLERANCE = 0.15; // as `minfer diff` has it
const SMALLEST = 1e-8; // where the logarithmic bars begin

function bar(distance) {
  if (distance === null) return "100";
  if (distance <= SMALLEST) return "0";
  return String(100 * Math.min(1, Math.log10(distance / SMALLEST) / -Math.log10(SMALLEST)));
}

function side(name, header) {
  const devices = Object.entries(header.devices).map(([k, v]) => `${k} (${v})`).join(", ");
  return el("p", {}, el("b", {}, `${name}: `), `${header.path}, ${header.model}, ${devices}, KV ${header.cache_type}`);
}

function verdict(found) {
  const counted = `${found.steps} steps and ${found.nodes.toLocaleString("en")} nodes compared, `
    + `${found.equal.toLocaleString("en")} equal to the last bit. `;
  if (found.parting) {
    return `${counted}They part at step ${found.parting.step}, ${found.parting.name} `
      + `(distance ${number(found.parting.distance)}).`;
  }
  if (found.tokens) return `${counted}From step ${found.tokens[0]} on the tokens differ: ${found.tokens[1]}.`;
  return `${counted}They do not part.`;
}

function table(found) {
  const head = el("tr", {}, ...["node", "op", "largest distance", ""].map((t) => el("th", { scope: "col" }, t)));
  const rows = found.rows.map((row) => {
    const over = row.distance === null || row.distance > TOLERANCE;
    const parting = row.name === found.parting?.name;
    return el("tr", { class: `${over ? "over" : ""} ${parting ? "parting" : ""}` },
      el("td", {}, el("button", { type: "button", onclick: () => show(row.name) }, row.name)),
      el("td", {}, row.op),
      el("td", {}, row.distance === null ? "not a number" : number(row.distance)),
      el("td", { style: "width:40%" }, el("div", { class: "bar", style: `width:${bar(row.distance)}%` })));
  });
  return el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows));
}

export async function start() {
  const reply = await fetch("compare");
  const found = await reply.json();
  const box = byId("compare");
  if (!found) {
    box.append(el("p", { class: "hint" },
      "Start with two traces to compare them: minfer viz A.trace --compare B.trace"));
    return;
  }
  box.append(side("A", found.a), side("B", found.b), el("p", { id: "verdict" }, verdict(found)), table(found));
}
