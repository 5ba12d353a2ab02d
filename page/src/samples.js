// The list of samples: filtered, sorted and searched, a page at a time.
import { colours } from "./charts.js";
import { announce, bothEnds, el, foreign, oneLine, replace } from "./dom.js";
import { kindName, number } from "./format.js";

const ORDERS = {
  newest: "newest first",
  oldest: "oldest first",
  worst: "worst reward first",
  best: "best reward first",
  longest: "longest first",
  shortest: "shortest first",
  disagreed: "groups that disagree most",
};
const PAGE = 100;
const MAX_HITS = 200; // a search stops once it has shown as many

export class Samples {
  constructor(state, parameters, go) {
    this.state = state;
    this.parameters = { kind: "step", order: "newest", ...parameters };
    this.go = go;
    this.cursor = -1;
    this.note = el("p", { class: "hint", role: "status" });
    this.body = el("tbody", {});
    this.head = el("tr", {});
    this.pages = el("nav", { class: "pages", "aria-label": "Pages" });
    this.table = el("table", { class: "samples" }, el("thead", {}, this.head), this.body);
    this.problems = el("div", {});
    this.element = el(
      "div",
      { class: "sample-list" },
      this.controls(),
      this.problems,
      this.note,
      el("div", { class: "scroll" }, this.table),
      this.pages,
    );
    this.load();
  }

  close() {
    this.isClosed = true;
  }

  update() {
    const isWaiting = this.isIndexing || !this.rows?.length;
    const isTop = !this.parameters.text && !this.parameters.offset && this.cursor < 0;
    const isRunning = this.state.selected.some((run) => this.state.runs[run].status === "running");
    if (isTop && (isRunning || isWaiting)) this.load();
  }

  controls() {
    const value = (name) => this.parameters[name] || "";
    const set = (name) => (event) =>
      this.change({
        [name]: event.target.type === "checkbox" ? (event.target.checked ? "1" : "") : event.target.value,
      });
    const field = (name, label) =>
      el(
        "label",
        { class: "narrow" },
        label,
        el("input", { type: "number", step: "any", name, value: value(name), onchange: set(name) }),
      );
    // Hidden until their choices are known; a search does not use them.
    const choice = (name, label) =>
      el("select", { name, "aria-label": label, hidden: true, onchange: set(name) });
    this.statusField = choice("status", "Status");
    this.datasetField = choice("dataset", "Dataset");
    return el(
      "form",
      { class: "controls", role: "search", onsubmit: (event) => event.preventDefault() },
      el(
        "div",
        { class: "choices", role: "group", "aria-label": "Kind of samples" },
        ["step", "dropped", "eval"].map((kind) =>
          el(
            "button",
            {
              type: "button",
              "aria-pressed": String(this.parameters.kind === kind),
              "data-kind": kind,
              onclick: () => this.change({ kind, status: "", dataset: "" }),
            },
            kindName(kind),
          ),
        ),
      ),
      el("input", {
        type: "search",
        name: "text",
        placeholder: "Search prompts and responses  ( / )",
        "aria-label": "Search prompts and responses",
        "data-search": true,
        value: value("text"),
        onchange: set("text"),
      }),
      el(
        "select",
        { name: "order", "aria-label": "Order", onchange: set("order") },
        Object.entries(ORDERS).map(([order, name]) =>
          el("option", { value: order, selected: this.parameters.order === order }, name),
        ),
      ),
      this.statusField,
      this.datasetField,
      el("span", { class: "range" }, field("from_step", "Step from"), field("to_step", "to")),
      el("span", { class: "range" }, field("min_reward", "Reward from"), field("max_reward", "to")),
      el(
        "label",
        {},
        el("input", {
          type: "checkbox",
          checked: Boolean(value("failed")),
          name: "failed",
          onchange: set("failed"),
        }),
        " failed only",
      ),
      el(
        "button",
        { type: "button", onclick: () => this.go("samples", { kind: this.parameters.kind }) },
        "Clear",
      ),
    );
  }

  change(changes) {
    this.go("samples", { ...this.parameters, offset: "", ...changes });
  }

  async load() {
    if (this.parameters.text) return this.search();
    const runs = this.state.selected.join(",");
    const page = await this.state.source.ask("samples", { ...this.parameters, runs });
    if (this.isClosed) return;
    this.isIndexing = page.index.indexed < page.index.files || !page.index.files;
    this.options(page.names);
    const isGroups = this.parameters.order === "disagreed";
    this.show(page.rows, isGroups ? groupColumns : sampleColumns, isGroups);
    const counted = `${page.count.toLocaleString("en-GB")}${page.is_exact ? "" : " or more"}`;
    const total = `${counted} ${isGroups ? "groups" : "samples"}`;
    this.note.textContent = [
      this.state.runs.length > 1
        ? this.state.selected.map((run) => this.state.runs[run].name).join(", ")
        : "",
      total,
      indexNote(page.index),
      page.note,
    ]
      .filter(Boolean)
      .join(" · ");
    replace(this.problems, problemList(page));
    this.showPages(page.count, page.rows.length);
    announce(total);
  }

  // Searches the selected runs in turns, a stretch of steps of each at a time.
  async search() {
    const { kind, text } = this.parameters;
    const rows = [];
    const next = new Map(this.state.selected.map((run) => [run, ""])); // the step that a run's search has reached
    while (next.size && rows.length < MAX_HITS) {
      for (const [run, before] of [...next]) {
        const answer = await this.state.source.ask("search", { run, kind, text, before });
        if (this.isClosed) return;
        rows.push(...answer.rows.map((row) => ({ run, ...row })));
        if (answer.next === null) next.delete(run);
        else next.set(run, answer.next);
      }
      rows.sort((a, b) => b.step - a.step || a.run - b.run || a.line - b.line);
      this.show(rows, searchColumns, false);
      const place = next.size ? `searched ${backTo(next)} …` : "all steps were searched";
      this.note.textContent = `${rows.length} samples contain “${text}” · ${place}`;
    }
    const newest = `The newest ${rows.length} samples that contain “${text}”`;
    if (next.size) this.note.textContent = `${newest}, ${backTo(next)}`;
    announce(this.note.textContent);
  }

  options({ status, dataset }) {
    const choices = (names, all, chosen) => [
      el("option", { value: "" }, all),
      ...names.map((name) => el("option", { value: name, selected: name === chosen }, name)),
    ];
    replace(this.statusField, choices(status, "any status", this.parameters.status));
    replace(this.datasetField, choices(dataset, "any dataset", this.parameters.dataset));
    this.statusField.hidden = false;
    this.datasetField.hidden = !dataset.length;
  }

  show(rows, known, isGroups) {
    this.rows = rows;
    this.isGroups = isGroups;
    const columns = this.columnsOf(rows, known);
    replace(
      this.head,
      columns.map(([name, , kind]) => el("th", { scope: "col", class: kind }, name)),
    );
    replace(
      this.body,
      rows.map((row) =>
        el(
          "tr",
          { onclick: () => this.open(row) },
          columns.map(([, cell, kind], index) =>
            el(
              "td",
              { class: kind },
              index === 0 ? el("a", { href: this.address(row) }, cell(row)) : cell(row),
            ),
          ),
        ),
      ),
    );
    if (!rows.length)
      replace(
        this.body,
        el("tr", {}, el("td", { colspan: columns.length, class: "empty" }, this.emptyText())),
      );
    this.move(0);
  }

  emptyText() {
    if (this.isIndexing) return "No samples yet.";
    return this.isGroups ? "No group has several samples with rewards." : "No sample matches.";
  }

  // Returns the columns that say something about these rows.
  columnsOf(rows, known) {
    const columns = known.filter(([name]) => name !== "filters" || rows.some((row) => row.verdicts));
    if (this.state.selected.length < 2) return columns;
    const palette = colours();
    const runColumn = ["run", ({ run }) => this.runName(run, palette[run % palette.length])];
    return [columns[0], runColumn, ...columns.slice(1)];
  }

  runName(run, colour) {
    return el(
      "span",
      { class: "run-name", style: { "--colour": colour } },
      el("span", { class: "dot", "aria-hidden": "true" }),
      oneLine(this.state.runs[run].name, 40),
    );
  }

  address({ run, kind, step, row, dataset, line }) {
    if (this.isGroups) return this.state.address("group", { run, kind, step, row, dataset });
    return this.state.address("sample", { run, kind, step, line });
  }

  open(row) {
    location.hash = this.address(row);
  }

  // Moves the selection by some rows; the keys j and k do this.
  move(by) {
    const rows = [...this.body.querySelectorAll("tr")];
    if (!by || !this.rows.length) return;
    rows[this.cursor]?.classList.remove("current");
    this.cursor = Math.max(0, Math.min(rows.length - 1, this.cursor + by));
    rows[this.cursor].classList.add("current");
    rows[this.cursor].querySelector("a")?.focus();
  }

  showPages(count, shown) {
    const offset = Number(this.parameters.offset || 0);
    const link = (to, name) =>
      el(
        "button",
        { type: "button", onclick: () => this.go("samples", { ...this.parameters, offset: to || "" }) },
        name,
      );
    replace(
      this.pages,
      offset > 0 ? link(Math.max(0, offset - PAGE), "‹ Previous") : null,
      shown === PAGE && offset + PAGE < count ? link(offset + PAGE, "Next ›") : null,
    );
  }
}

export function rewardCell(reward) {
  const kind = reward === null ? "none" : reward > 0 ? "good" : "bad";
  return el("span", { class: `reward ${kind}` }, number(reward));
}

const sampleColumns = [
  ["sample", (row) => oneLine(row.id || `line ${row.line}`, 40)],
  ["step", (row) => String(row.step), "number"],
  ["reward", (row) => rewardCell(row.reward), "number"],
  ["tokens", (row) => row.tokens.toLocaleString("en-GB"), "number"],
  [
    "status",
    (row) =>
      el(
        "span",
        { class: `status ${/^[a-z]+$/.test(row.status) ? row.status : ""}` },
        oneLine(row.status, 30),
        row.failed && row.status !== "failed" ? " (reward failed)" : "",
      ),
  ],
  ["dataset row", (row) => oneLine([row.dataset, row.row].filter(Boolean).join(" · "), 60), "row"],
  ["prompt", (row) => bothEnds(row.prompt ?? ""), "quote"],
  ["response", (row) => oneLine(row.excerpt ?? "", 110), "quote"],
  ["filters", (row) => oneLine(row.verdicts, 60)],
  ["version", (row) => String(row.version ?? ""), "number"],
];
const searchColumns = [...sampleColumns.slice(0, 4), ["text", (row) => oneLine(row.excerpt, 180), "found"]];
const groupColumns = [
  ["dataset row", (row) => oneLine([row.dataset, row.row].filter(Boolean).join(" · ") || "–", 60), "row"],
  ["step", (row) => String(row.step), "number"],
  ["samples", (row) => String(row.samples), "number"],
  ["mean reward", (row) => number(row.mean), "number"],
  ["spread of rewards", (row) => number(row.spread), "number"],
  ["prompt", (row) => bothEnds(row.prompt ?? ""), "quote"],
];

function backTo(next) {
  return `back to step ${Math.max(...next.values())}`;
}

function indexNote({ files, indexed, error }) {
  if (error) return `the samples cannot be indexed: ${error}`;
  if (indexed >= files) return "";
  const [done, all] = [indexed, files].map((count) => count.toLocaleString("en-GB"));
  return `reading samples: ${done} of ${all} files so far, newest first`;
}

function problemList({ problems }) {
  if (!problems.length) return null;
  return el(
    "details",
    { class: "problems" },
    el("summary", {}, `${problems.length} damaged lines or files are left out`),
    el(
      "ul",
      {},
      problems.map((text) => el("li", {}, foreign(text))),
    ),
  );
}
