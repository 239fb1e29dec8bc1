// What the page knows: header, plans, steps, tokens; and who wants to hear of a change.
// Views never talk to each other: they change the selection here and are told.

// The order of a node's figures in a step, as `minfer.trace.records.NodeRecord` has it.
const FIELDS = ["node", "at_us", "us", "nbytes", "flops", "rows", "low", "high", "mean", "absmax",
  "rms", "nans", "infs", "sample", "histogram"];
const KEPT = 512; // steps; older ones go

export const store = {
  status: { state: "connecting", error: "" },
  header: null,
  facts: null,
  plans: new Map(),
  steps: [],
  tokens: [], // {text, token, step, prompt}
  usage: null,
  selected: { step: -1, node: null, follow: true },
};

const listeners = new Map();

/** Calls `listener` after `kind` changed: at most once a frame, however often it changes. */
export function on(kind, listener) {
  if (!listeners.has(kind)) listeners.set(kind, { calls: [], waiting: false });
  listeners.get(kind).calls.push(listener);
}

export function changed(kind) {
  const entry = listeners.get(kind);
  if (!entry || entry.waiting) return;
  entry.waiting = true;
  requestAnimationFrame(() => {
    entry.waiting = false;
    for (const call of entry.calls) call();
  });
}

export function step() {
  return store.steps[store.selected.step] ?? null;
}

export function plan() {
  const current = step();
  return current ? store.plans.get(current.plan) : null;
}

/** What a node of the chosen step did, by its name. */
export function done(name) {
  const current = step();
  if (!current) return null;
  const index = plan().index.get(name);
  return index === undefined ? null : current.byNode.get(index) ?? null;
}

export function selectStep(index, follow = false) {
  store.selected.step = Math.max(0, Math.min(store.steps.length - 1, index));
  store.selected.follow = follow;
  changed("step");
}

export function selectNode(name) {
  store.selected.node = name;
  changed("node");
}

export function addPlan(record) {
  record.index = new Map(record.nodes.map((node, i) => [node.name, i]));
  record.readers = record.nodes.map(() => []);
  record.nodes.forEach((node, i) => node.srcs.forEach((src) => record.readers[src].push(i)));
  store.plans.set(record.id, record);
}

export function addStep(record) {
  const named = (row) => Object.fromEntries(FIELDS.map((field, i) => [field, row[i]]));
  record.nodes = record.nodes.map(named);
  record.byNode = new Map(record.nodes.map((node) => [node.node, node]));
  record.us = record.nodes.reduce((sum, node) => sum + node.us, 0);
  store.steps.push(record);
  if (store.steps.length > KEPT) {
    store.steps.shift();
    store.selected.step -= 1;
  }
  if (store.selected.follow) store.selected.step = store.steps.length - 1;
  changed("step");
}

/** Forgets a run, before another. */
export function clear() {
  store.steps = [];
  store.tokens = [];
  store.usage = null;
  store.selected.step = -1;
  store.selected.follow = true;
  changed("step");
  changed("tokens");
}
