// The overview: the runs' states, and every metric as a chart in a named group.
import { Chart, colours } from "./charts.js";
import { drawnOnce, groupMetrics } from "./curves.js";
import { el, foreign, replace } from "./dom.js";
import { ago, duration, number } from "./format.js";
import { sweepTable } from "./sweep.js";

const ADDRESS_MILLISECONDS = 250; // a setting is in the address after this pause

export class Overview {
  constructor(state, parameters, go) {
    this.state = state;
    this.go = go;
    this.settings = state.charts;
    this.charts = new Map();
    this.visible = new Set();
    this.cards = el("section", { class: "cards", "aria-label": "Runs" });
    this.groups = el("div", { class: "groups" });
    this.sweeps = el("div", {});
    this.element = el("div", { class: "overview" }, this.sweeps, this.cards, this.controls(), this.groups);
    this.observer = new IntersectionObserver((entries) => this.scrolled(entries), { rootMargin: "300px" });
    this.onResize = () => this.charts.forEach((chart) => chart.resize());
    addEventListener("resize", this.onResize);
    this.shownNames = "";
    this.update();
  }

  close() {
    clearTimeout(this.timer);
    this.observer.disconnect();
    removeEventListener("resize", this.onResize);
  }

  controls() {
    const smoothing = el("input", {
      type: "range",
      min: 0,
      max: 0.98,
      step: 0.02,
      value: this.settings.weight,
      id: "smoothing",
      oninput: () => this.set({ weight: Number(smoothing.value) }),
    });
    const log = el("input", {
      type: "checkbox",
      checked: this.settings.log,
      id: "log",
      onchange: () => this.set({ log: log.checked }),
    });
    const filter = el("input", {
      type: "search",
      id: "metric-filter",
      placeholder: "Filter metrics  ( / )",
      value: this.settings.text,
      "aria-label": "Filter metrics",
      "data-search": true,
      oninput: () => {
        this.settings.text = filter.value;
        this.layOut();
        this.keepInAddress();
      },
    });
    this.reset = el(
      "button",
      { type: "button", hidden: !this.settings.zoom, onclick: () => this.set({ zoom: null }) },
      "Show all steps",
    );
    return el(
      "form",
      { class: "controls", onsubmit: (event) => event.preventDefault(), "aria-label": "Charts" },
      filter,
      el("label", {}, "Smoothing ", smoothing),
      el("label", {}, log, " Log scale"),
      this.reset,
      el("span", { class: "hint" }, "drag over a chart to zoom, double-click to reset"),
    );
  }

  set(changes) {
    Object.assign(this.settings, changes);
    this.reset.hidden = !this.settings.zoom;
    this.drawVisible();
    this.keepInAddress();
  }

  // Browsers refuse an address that changes with every event of a slider.
  keepInAddress() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.go("overview", {}, true), ADDRESS_MILLISECONDS);
  }

  update() {
    replace(
      this.cards,
      this.state.runs.map((run, number) => (this.state.selected.includes(number) ? card(run, number) : null)),
    );
    this.showSweeps();
    const lines = this.state.selected.map((number) => `${number}:${this.state.runs[number].lines}`).join();
    if (lines === this.drawnLines) return;
    this.drawnLines = lines;
    this.layOut();
    this.drawVisible();
  }

  // Shows the sweeps of the runs, again whenever a run has advanced.
  async showSweeps() {
    const advance = JSON.stringify(this.state.runs.map(({ status, step }) => [status, step]));
    if (advance === this.shownAdvance) return;
    this.shownAdvance = advance;
    const tables = await this.state.source.ask("sweeps");
    replace(
      this.sweeps,
      tables.map((table) => sweepTable(this.state, table)),
    );
  }

  layOut() {
    const drawn = drawnOnce(this.state.selected.map((number) => this.state.runs[number]));
    const text = this.settings.text.toLowerCase();
    const isShown = (names) => names.some((name) => name.toLowerCase().includes(text));
    const shown = [...drawn].filter(([name, aliases]) => isShown([name, ...aliases])).map(([name]) => name);
    const key = shown.map((name) => [name, ...drawn.get(name)].join(" = ")).join("\n");
    if (key === this.shownNames && this.groups.childElementCount) return;
    this.shownNames = key;
    this.observer.disconnect();
    this.visible.clear();
    const sections = groupMetrics(shown).map(([title, members]) =>
      el(
        "details",
        { class: "group", open: true },
        el("summary", {}, el("h2", {}, title), el("span", { class: "count" }, String(members.length))),
        el(
          "div",
          { class: "grid" },
          members.map((name) => this.chart(name, drawn.get(name)).element),
        ),
      ),
    );
    replace(
      this.groups,
      sections.length
        ? sections
        : el("p", { class: "empty" }, drawn.size ? "No metric has this name." : "No step is finished yet."),
    );
    for (const name of shown) this.observer.observe(this.charts.get(name).element);
  }

  chart(name, aliases) {
    if (!this.charts.has(name)) {
      const chart = new Chart(name, (zoom) => this.set({ zoom }));
      chart.element.addEventListener("dblclick", () => this.set({ zoom: null }));
      this.charts.set(name, chart);
    }
    this.charts.get(name).setAliases(aliases);
    return this.charts.get(name);
  }

  scrolled(entries) {
    const fresh = [];
    for (const { target, isIntersecting } of entries) {
      const { metric } = target.dataset;
      if (isIntersecting && !this.visible.has(metric)) fresh.push(metric);
      if (isIntersecting) this.visible.add(metric);
      else this.visible.delete(metric);
    }
    this.draw(fresh);
  }

  drawVisible() {
    this.draw([...this.visible]);
  }

  async draw(names) {
    if (!names.length) return;
    const palette = colours();
    const [from, to] = this.settings.zoom || ["", ""];
    const answers = await Promise.all(
      this.state.selected.map((run) =>
        this.state.source.ask("curves", { run, names: JSON.stringify(names), from, to }),
      ),
    );
    for (const name of names) {
      const curves = this.state.selected
        .map((run, index) => ({
          label: this.state.runs[run].name,
          colour: palette[run % palette.length],
          curve: answers[index][name],
        }))
        .filter(({ curve }) => curve[0].length);
      this.charts.get(name).draw(curves, this.settings);
    }
  }
}

function card(run, number_) {
  const share = run.steps ? Math.min(1, run.step / run.steps) : 0;
  const left = run.status === "running" ? run.seconds_left : null;
  const facts = [
    ["Reward", number(run.metrics["rollout/reward/mean"])],
    ...Object.entries(run.metrics)
      .filter(([name]) => /^eval\/.*\/reward$/.test(name))
      .map(([name, value]) => [name.split("/").slice(1, -1).join("/"), number(value)]),
    ["Step time", duration(run.metrics["perf/step_time"])],
    ...(!left ? [] : [["Time left", `about ${duration(left)}`]]),
    ["Updated", run.updated ? ago(run.updated) : "–"],
  ];
  const progress = el("progress", {
    max: 1,
    value: share,
    "aria-label": `${run.name}: step ${run.step} of ${run.steps ?? "?"}`,
  });
  return el(
    "article",
    { class: `card run-${(number_ % 8) + 1}` },
    el(
      "header",
      {},
      el("h2", {}, foreign(run.name)),
      el("span", { class: `badge ${run.status}` }, run.status || "unknown"),
    ),
    progress,
    el(
      "p",
      { class: "steps" },
      `step ${run.step.toLocaleString("en-GB")} of ${run.steps?.toLocaleString("en-GB") ?? "?"}`,
    ),
    el(
      "dl",
      { class: "facts" },
      facts.map(([name, value]) => el("div", {}, el("dt", {}, foreign(name)), el("dd", {}, value))),
    ),
    run.bottleneck ? el("p", { class: "advice" }, el("b", {}, "Speed: "), foreign(run.bottleneck)) : null,
    (run.alerts || []).map((text) => el("p", { class: "problem" }, foreign(text))),
    run.error ? el("p", { class: "problem" }, foreign(run.error)) : null,
    run.problems.length
      ? el(
          "details",
          { class: "problems" },
          el(
            "summary",
            {},
            `${run.problems.length} problem${run.problems.length > 1 ? "s" : ""} in its files`,
          ),
          el(
            "ul",
            {},
            run.problems.map((text) => el("li", {}, foreign(text))),
          ),
        )
      : null,
  );
}
