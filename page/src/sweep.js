// The table of a sweep: the values of each trial, its metric, and which trial is the best so far.
import { colours } from "./charts.js";
import { el, foreign } from "./dom.js";
import { number, settingText } from "./format.js";
import { MAX_SELECTED } from "./state.js";

// table: an answer to the question "sweeps".
export function sweepTable(state, table) {
  const title = el("h2", {}, "Sweep ", foreign(table.name));
  if (table.problem)
    return el("section", { class: "sweep" }, title, el("p", { class: "problem" }, foreign(table.problem)));
  const keys = sweptKeys(table.trials);
  return el(
    "section",
    { class: "sweep", "aria-label": `Sweep ${table.name}` },
    title,
    el("p", { class: "hint" }, foreign(summaryOf(table)), allTrials(state, table)),
    el(
      "div",
      { class: "scroll" },
      el(
        "table",
        {},
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            ["trial", ...keys].map((name) => el("th", { scope: "col" }, foreign(name))),
            el("th", { scope: "col", class: "number" }, foreign(table.metric)),
            ["", "status", "step"].map((name) => el("th", { scope: "col" }, name)),
          ),
        ),
        el(
          "tbody",
          {},
          table.trials.map((trial) => trialRow(state, trial, keys)),
        ),
      ),
    ),
  );
}

// A link that shows the trials over each other, as many as there are colours.
function allTrials(state, { trials }) {
  const runs = trials.map(({ run }) => run).filter((run) => run !== null);
  if (runs.length < 2) return null;
  const shown = runs.sort((a, b) => a - b).slice(0, MAX_SELECTED);
  const text = shown.length < runs.length ? `the first ${shown.length} trials` : "all trials";
  return [" · ", el("a", { href: state.address("overview", {}, shown) }, text)];
}

// The keys that any trial sets.
export function sweptKeys(trials) {
  return [...new Set(trials.flatMap(({ values }) => Object.keys(values)))];
}

export function summaryOf({ metric, goal, trials }) {
  const done = trials.filter(({ status }) => status === "done").length;
  const better = goal === "max" ? "higher" : "lower";
  return `${done} of ${trials.length} trials are done · compared by the last ${metric}: ${better} is better`;
}

function trialRow(state, trial, keys) {
  const palette = colours();
  const { run, best, values, status, step, steps, score } = trial;
  const isSelected = state.selected.includes(run);
  const dot = isSelected
    ? el("span", {
        class: "dot",
        "aria-hidden": "true",
        style: { "--colour": palette[run % palette.length] },
      })
    : null;
  const name = foreign(trial.name.split("-")[0]);
  const link =
    run === null ? name : el("a", { href: state.address("overview", {}, [run]), title: trial.name }, name);
  return el(
    "tr",
    { class: best ? "best" : null },
    el("th", { scope: "row" }, el("span", { class: "run-name" }, link, dot)),
    keys.map((key) => el("td", {}, key in values ? foreign(settingText(values[key])) : "")),
    el("td", { class: "number" }, number(score)),
    el("td", {}, best ? el("b", {}, "best") : ""),
    el("td", {}, el("span", { class: `badge ${status}` }, foreign(status))),
    el("td", {}, `${step}/${steps ?? "?"}`),
  );
}
