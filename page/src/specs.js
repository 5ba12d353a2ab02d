// The spec of the first run, what was written apart from what was added, and how the other runs differ from it.
import { el, foreign, replace } from "./dom.js";
import { settingText } from "./format.js";

export class Specs {
  constructor(state) {
    this.state = state;
    this.element = el("div", { class: "specs" });
    this.shown = "";
    this.update();
  }

  close() {}

  async update() {
    const runs = this.state.selected.join(",");
    if (runs === this.shown) return;
    this.shown = runs;
    const { spec, differences } = await this.state.source.ask("specs", { runs });
    const names = this.state.selected.map((number) => this.state.runs[number].name);
    const { written, resolved } = rowsOf(spec);
    const filter = el("input", {
      type: "search",
      placeholder: "Filter keys  ( / )",
      "aria-label": "Filter keys",
      "data-search": true,
    });
    const tables = el("div", {});
    const list = () => {
      const shown = (rows) => rows.filter(([key]) => key.includes(filter.value));
      replace(tables, ...tablesOf(names[0], written && shown(written), shown(resolved)));
    };
    filter.addEventListener("input", list);
    list();
    replace(
      this.element,
      compare(names, differences),
      el("div", { class: "controls" }, filter),
      spec.spec ? tables : el("p", { class: "empty" }, "The run has no spec.lock.json that can be read."),
    );
  }
}

// The keys of a spec with their values: those that its author wrote, and those that rlrun added. written: null where
// the run does not say which is which.
export function rowsOf({ spec = {}, given }) {
  const rows = leaves(spec, "");
  if (!given) return { written: null, resolved: rows };
  const keys = new Set(leaves(given, "").map(([key]) => key));
  return { written: rows.filter(([key]) => keys.has(key)), resolved: rows.filter(([key]) => !keys.has(key)) };
}

function tablesOf(name, written, resolved) {
  if (written === null) return [el("h2", {}, "Spec of ", foreign(name)), keyTable(resolved)];
  return [
    el("h2", {}, "Written in the spec of ", foreign(name), count(written)),
    keyTable(written),
    el("h2", {}, "Defaults, and what follows from other keys", count(resolved)),
    keyTable(resolved, "added"),
  ];
}

function count(rows) {
  return el("span", { class: "count" }, ` ${rows.length}`);
}

function keyTable(rows, kind = "") {
  if (!rows.length) return el("p", { class: "empty" }, "No key matches.");
  return el(
    "table",
    { class: `keys ${kind}` },
    el(
      "tbody",
      {},
      rows.map(([key, value]) =>
        el("tr", {}, el("th", { scope: "row" }, foreign(key)), el("td", {}, foreign(value))),
      ),
    ),
  );
}

function compare(names, differences) {
  if (!differences.length)
    return el("p", { class: "hint" }, "Select several runs to see how their specs differ.");
  const keys = [...new Set(differences.flatMap((own) => own.map(({ key }) => key)))].sort();
  if (!keys.length) return el("p", { class: "hint" }, "The specs of these runs do not differ.");
  const value = (index, key) => {
    if (index === 0)
      return differences.map((own) => own.find((item) => item.key === key)).find(Boolean).before;
    const own = differences[index - 1].find((item) => item.key === key);
    return own ? own.after : value(0, key);
  };
  return el(
    "section",
    {},
    el("h2", {}, "Differences"),
    el(
      "div",
      { class: "scroll" },
      el(
        "table",
        { class: "differences" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("th", { scope: "col" }, "key"),
            names.map((name) => el("th", { scope: "col" }, foreign(name))),
          ),
        ),
        el(
          "tbody",
          {},
          keys.map((key) =>
            el(
              "tr",
              {},
              el("th", { scope: "row" }, foreign(key)),
              names.map((_, index) => el("td", {}, foreign(settingText(value(index, key))))),
            ),
          ),
        ),
      ),
    ),
  );
}

function leaves(value, key) {
  if (
    value !== null &&
    typeof value === "object" &&
    !(Array.isArray(value) && value.every((item) => typeof item !== "object" || item === null))
  ) {
    return Object.entries(value).flatMap(([name, inner]) => leaves(inner, key ? `${key}.${name}` : name));
  }
  return value === null ? [] : [[key, settingText(value)]];
}
