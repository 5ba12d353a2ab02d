// Starts the page: opens the screen of the address, handles keys, and refreshes while a job runs.
import { readAddress } from "./address.js";
import { colours } from "./charts.js";
import { announce, el, foreign, replace } from "./dom.js";
import { Overview } from "./overview.js";
import { GroupPage, SamplePage } from "./sample.js";
import { Samples } from "./samples.js";
import { openSource } from "./source.js";
import { Specs } from "./specs.js";
import { PageState } from "./state.js";
import { Timeline } from "./timeline.js";

const TABS = [
  ["overview", "Overview"],
  ["samples", "Samples"],
  ["steps", "Steps"],
  ["spec", "Spec"],
];
const SCREENS = {
  overview: Overview,
  samples: Samples,
  steps: Timeline,
  spec: Specs,
  sample: SamplePage,
  group: GroupPage,
};
const KEYS = [
  ["1 … 4", "overview, samples, steps, spec"],
  ["/", "search"],
  ["j k", "next and previous row"],
  ["Enter", "open the row"],
  ["n p", "next and previous sample"],
  ["Esc", "back"],
  ["?", "these keys"],
];

function address() {
  const { name, parameters } = readAddress(location.hash);
  return { name: Object.hasOwn(SCREENS, name) ? name : "overview", parameters };
}

// Opens a screen. With `isReplacing` the address only changes to what the open screen shows already.
function go(state, name, parameters, isReplacing = false) {
  const hash = state.address(name, parameters);
  if (!isReplacing) {
    location.hash = hash;
    return;
  }
  history.replaceState(null, "", hash);
  state.mustOpen(hash);
}

// Opens what the address says, after the reader has followed a link, gone back, or entered an address.
async function follow(state) {
  const before = state.selected.join();
  state.follow(address());
  if (state.selected.join() !== before) await state.readRuns();
  open(state);
}

function open(state) {
  if (!state.mustOpen(location.hash)) return;
  const { name, parameters } = address();
  state.screen?.close();
  try {
    state.screen = new SCREENS[name](state, parameters, (...target) => go(state, ...target));
    replace(document.getElementById("main"), state.screen.element);
  } catch (error) {
    failed(error);
  }
  replace(document.getElementById("top"), header(state, name));
}

function header(state, name) {
  const tab = { sample: "samples", group: "samples" }[name] || name;
  const tabs = TABS.map(([own, title]) =>
    el("a", { href: state.address(own), "aria-current": own === tab ? "page" : null }, title),
  );
  const fileBadge = state.source.isFile ? el("span", { class: "badge file" }, "file") : null;
  return [
    el("div", { class: "brand" }, el("strong", {}, "rlrun"), " view", fileBadge),
    el("nav", { class: "tabs", "aria-label": "Screens" }, tabs),
    state.runs.length > 1 ? runChoices(state) : null,
    el("button", { type: "button", class: "help", "aria-label": "Keys", onclick: showKeys }, "?"),
  ];
}

function runChoices(state) {
  const palette = colours();
  const choices = state.runs.map((run, number) => {
    const colour = palette[number % palette.length];
    const checked = state.selected.includes(number);
    return el(
      "label",
      { class: "run-choice", style: { "--colour": colour } },
      el("input", { type: "checkbox", checked, onchange: (event) => select(state, number, event.target) }),
      el("span", { class: "dot", "aria-hidden": "true" }),
      foreign(run.name),
    );
  });
  return el("fieldset", { class: "runs" }, el("legend", { class: "unseen" }, "Runs"), choices);
}

function select(state, number, box) {
  const selected = state.toggled(number);
  box.checked = selected.includes(number);
  const { name, parameters } = address();
  location.hash = state.address(name, parameters, selected);
}

function showKeys() {
  const dialog = el(
    "dialog",
    { "aria-label": "Keys", onclose: () => dialog.remove() },
    el("h2", {}, "Keys"),
    el(
      "dl",
      { class: "keys-list" },
      KEYS.map(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)]),
    ),
    el("form", { method: "dialog" }, el("button", {}, "Close")),
  );
  document.body.append(dialog);
  dialog.showModal();
}

function onKey(state, event) {
  const { tagName, type } = event.target;
  const isTyping = /^(input|select|textarea)$/i.test(tagName) && !["checkbox", "range"].includes(type);
  const { name } = address();
  if (event.key === "Escape") {
    if (isTyping) event.target.blur();
    else if (name === "sample" || name === "group") history.back();
    return;
  }
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog")) return;
  const actions = {
    "/": () => document.querySelector("[data-search]")?.focus(),
    "?": showKeys,
    j: () => state.screen?.move?.(1),
    k: () => state.screen?.move?.(-1),
    n: () => name === "sample" && state.screen.move(1),
    p: () => name === "sample" && state.screen.move(-1),
    ...Object.fromEntries(TABS.map(([tab], index) => [String(index + 1), () => go(state, tab, {})])),
  };
  if (!Object.hasOwn(actions, event.key)) return;
  event.preventDefault();
  actions[event.key]();
}

function failed(error) {
  const text = error?.message || String(error);
  replace(document.getElementById("main"), el("p", { class: "problem", role: "alert" }, foreign(text)));
}

async function refresh(state) {
  try {
    await state.readRuns();
    state.isLost = false;
    state.screen?.update();
  } catch (error) {
    if (!state.isLost) announce(error.message);
    state.isLost = true;
  }
  document.body.classList.toggle("lost", state.isLost);
  refreshLater(state);
}

function refreshLater(state) {
  const delay = state.refreshDelay(document.hidden);
  if (delay !== null) setTimeout(refresh, delay, state);
}

async function start() {
  const state = new PageState(await openSource());
  await state.readRuns();
  await follow(state);
  addEventListener("hashchange", () => follow(state));
  addEventListener("keydown", (event) => onKey(state, event));
  addEventListener("unhandledrejection", (event) => failed(event.reason));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    state.forgetOpened();
    open(state);
  });
  refreshLater(state);
}

start().catch(failed);
