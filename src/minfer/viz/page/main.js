// The page: listens to the server's events, and holds what belongs to no view - prompt, tokens, steps.

import * as attention from "./attention.js";
import * as compare from "./compare.js";
import * as graph from "./graph.js";
import * as panel from "./panel.js";
import * as timeline from "./timeline.js";
import { byId, el, shown, sized, style } from "./util.js";
import { addPlan, addStep, changed, clear, on, selectStep, step, store } from "./store.js";

const STATES = {
  connecting: "connecting", loading: "loading the model", ready: "ready", running: "running",
  saved: "saved trace", failed: "not loaded", lost: "connection lost",
};

// ---- events ----------------------------------------------------------------------------------

const events = {
  status: (status) => { store.status = status; changed("status"); },
  header: (header) => { store.header = header; changed("header"); },
  model: (facts) => { store.facts = facts; changed("model"); },
  plan: addPlan,
  prompt: ({ texts, tokens }) => {
    clear();
    store.tokens = tokens.map((token, i) => ({ token, text: texts[i], prompt: true, step: -1 }));
    changed("tokens");
  },
  step: (record) => {
    addStep(record);
    if (store.status.state === "saved") fromTrace(record);
  },
  token: ({ token, text }) => {
    if (token === null && !text) return;
    store.tokens.push({ token, text, prompt: false, step: store.steps.length - 1 });
    changed("tokens");
  },
  usage: (usage) => { store.usage = usage; changed("usage"); },
  lost: ({ events: count }) => say(`This page was too slow and missed ${count} events.`),
};

/** The tokens of a saved trace, as its steps have them. */
function fromTrace(record) {
  for (const run of record.runs) {
    run.tokens.forEach((token, i) => store.tokens.push({
      token, text: run.texts[i], prompt: !run.single, step: store.steps.length - 2,
    }));
  }
  changed("tokens");
}

function listen() {
  const source = new EventSource("events");
  source.onopen = () => { clear(); store.plans.clear(); };
  source.onerror = () => { store.status = { state: "lost", error: "" }; changed("status"); };
  for (const [kind, handle] of Object.entries(events)) {
    source.addEventListener(kind, (event) => handle(JSON.parse(event.data)));
  }
}

function say(text) {
  byId("error").textContent = text;
  byId("error").hidden = !text;
}

// ---- prompt ----------------------------------------------------------------------------------

async function post(route, body) {
  const reply = await fetch(route, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  });
  say(reply.ok ? "" : (await reply.json()).error);
}

function startPrompt() {
  byId("prompt-form").addEventListener("submit", (event) => {
    event.preventDefault();
    post("generate", {
      prompt: byId("prompt").value,
      max_tokens: byId("max-tokens").valueAsNumber,
      temperature: byId("temperature").valueAsNumber,
      chat: byId("chat").checked,
    });
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("prompt-form").requestSubmit();
  });
  byId("stop").addEventListener("click", () => post("stop", {}));
}

// ---- head ------------------------------------------------------------------------------------

function drawStatus() {
  const { state, error } = store.status;
  byId("status").textContent = STATES[state];
  byId("status").dataset.state = state;
  byId("run").disabled = state !== "ready";
  byId("stop").disabled = state !== "running";
  byId("prompt-form").hidden = state === "saved";
  if (state !== "lost") say(error);
}

function drawHeader() {
  const { model, architecture, devices, cache_type } = store.header;
  byId("model").textContent = `${model} (${architecture})`;
  const where = Object.entries(devices).map(([name, device]) => `${name}: ${device}`).join(" · ");
  byId("devices").textContent = `${where} · KV ${cache_type}`;
  document.title = `${model} – minfer viz`;
}

/** A model with a chat template is asked through it, as `minfer run` does; others cannot be. */
function drawChat() {
  byId("chat").checked = store.facts.chat;
  byId("chat").disabled = !store.facts.chat;
}

function drawUsage() {
  const usage = store.usage;
  // the prompt's step gives the first token: a rate of generation takes a second one
  const generation = usage?.decode_rate ? ` · generation ${usage.decode_rate.toFixed(1)} t/s` : "";
  byId("rate").textContent = usage
    ? `prompt ${usage.prompt_rate.toFixed(1)} t/s${generation}, traced`
    : "";
}

// ---- tokens ----------------------------------------------------------------------------------

/** How sure the model was of a token: the share of probability it gave to others. */
function doubt(token) {
  const made = store.steps[token.step]?.top[0]?.find((c) => c[0] === token.token);
  return made ? 1 - made[3] : 1;
}

function drawTokens() {
  const buttons = store.tokens.map((token, i) => {
    const button = el("button", {
      type: "button", class: token.prompt ? "prompt" : "made", "data-index": i,
      "aria-pressed": String(!token.prompt && token.step === store.selected.step),
      title: token.prompt ? `prompt, token ${token.token}` : `token ${token.token}`,
      onclick: () => { if (token.step >= 0) selectStep(token.step); },
    }, shown(token.text));
    if (!token.prompt) button.style.setProperty("--doubt", doubt(token));
    return button;
  });
  byId("tokens").replaceChildren(...buttons);
  byId("strip").hidden = !buttons.length;
  if (store.selected.follow) byId("strip").scrollTop = byId("strip").scrollHeight;
}

function markTokens() {
  for (const button of byId("tokens").children) {
    const token = store.tokens[button.dataset.index];
    const here = token && !token.prompt && token.step === store.selected.step;
    button.setAttribute("aria-pressed", String(Boolean(here)));
  }
}

// ---- steps and pages -------------------------------------------------------------------------

function drawSteps() {
  const current = step();
  byId("steps").hidden = !current;
  if (!current) return;
  byId("step").max = store.steps.length - 1;
  byId("step").value = store.selected.step;
  byId("follow").checked = store.selected.follow;
  const rows = current.runs.reduce((sum, run) => sum + run.tokens.length, 0);
  const all = store.steps.length;
  byId("step-text").textContent = `step ${current.n}, ${all} in all, ${rows} row${rows > 1 ? "s" : ""}`;
  drawPages(current.pages);
}

/** KV pages as squares: in use, kept for later requests, free. */
function drawPages([free, cached, all]) {
  const columns = Math.min(all, 64);
  const lines = Math.min(4, Math.ceil(all / columns));
  const each = Math.ceil(all / (columns * lines)); // pages a square, where there are many
  const context = sized(byId("pages"), columns * 5, lines * 6);
  const used = all - free - cached;
  for (let i = 0; i * each < all; i += 1) {
    const page = i * each;
    const kind = page < used ? "--hot" : page < used + cached ? "--accent" : "--line";
    context.fillStyle = style(kind);
    context.fillRect((i % columns) * 5, Math.floor(i / columns) * 6, 4, 5);
  }
  byId("pages-text").textContent = `KV pages: ${used} in use, ${cached} kept, ${free} free`;
}

function startSteps() {
  byId("step").addEventListener("input", () => selectStep(byId("step").valueAsNumber));
  byId("previous").addEventListener("click", () => selectStep(store.selected.step - 1));
  byId("next").addEventListener("click", () => selectStep(store.selected.step + 1));
  byId("follow").addEventListener("change", () => {
    if (byId("follow").checked) selectStep(store.steps.length - 1, true);
    else store.selected.follow = false;
  });
}

// ---- tabs ------------------------------------------------------------------------------------

function startTabs() {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const choose = (tab) => {
    for (const other of tabs) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      byId(other.getAttribute("aria-controls")).hidden = !chosen;
    }
    changed("view");
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const next = tabs[(i + by + tabs.length) % tabs.length];
      choose(next);
      next.focus();
    });
  });
}

on("status", drawStatus);
on("header", drawHeader);
on("model", drawChat);
on("usage", drawUsage);
on("tokens", drawTokens);
on("step", drawSteps);
on("step", markTokens);
graph.start();
panel.start();
timeline.start();
attention.start();
compare.start();
startPrompt();
startSteps();
startTabs();
// canvases keep the colours they were drawn with
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  changed("step");
  changed("view");
});
listen();
