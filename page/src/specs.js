// The spec of the first run, and how the other runs differ from it.
import { el, foreign, replace } from "./dom.js";

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
    const rows = leaves(spec.spec || spec, "");
    const filter = el("input", {
      type: "search",
      placeholder: "Filter keys  ( / )",
      "aria-label": "Filter keys",
      "data-search": true,
    });
    const body = el("tbody", {});
    const list = () =>
      replace(
        body,
        rows
          .filter(([key]) => key.includes(filter.value))
          .map(([key, value]) =>
            el("tr", {}, el("th", { scope: "row" }, foreign(key)), el("td", {}, foreign(value))),
          ),
      );
    filter.addEventListener("input", list);
    list();
    replace(
      this.element,
      compare(names, differences),
      el("h2", {}, "Spec of ", foreign(names[0])),
      el("div", { class: "controls" }, filter),
      rows.length
        ? el("table", { class: "keys" }, body)
        : el("p", { class: "empty" }, "The run has no spec.lock.json that can be read."),
    );
  }
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
              names.map((_, index) => el("td", {}, foreign(text(value(index, key))))),
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
  return value === null ? [] : [[key, text(value)]];
}

function text(value) {
  return value === null || value === undefined
    ? "not set"
    : typeof value === "string"
      ? value
      : JSON.stringify(value);
}
