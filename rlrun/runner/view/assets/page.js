// Built by `make page` from page/src. SHA-256 of both: 24de69ddd61f5403325f47f58adf4c66462c4958d26b7cdfa23c3606f547f03e
"use strict";
(() => {
  // src/address.js
  function addressOf(name, parameters) {
    const query = new URLSearchParams(parameters).toString().replaceAll("%2C", ",");
    return query ? `#${name}?${query}` : `#${name}`;
  }
  function readAddress(hash) {
    const [name, query = ""] = hash.slice(1).split("?");
    return { name, parameters: Object.fromEntries(new URLSearchParams(query)) };
  }
  function given(parameters) {
    return Object.fromEntries(
      Object.entries(parameters).filter(([, value]) => value !== "" && value !== void 0),
    );
  }

  // src/format.js
  function number(value) {
    if (value === null || value === void 0 || Number.isNaN(value)) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
    if (size >= 1e3) return value.toLocaleString("en-GB", { maximumFractionDigits: 0 });
    return String(Number(value.toPrecision(4)));
  }
  function duration(seconds) {
    if (seconds === null || seconds === void 0 || !Number.isFinite(seconds)) return "–";
    if (seconds < 10) return `${seconds.toFixed(seconds < 1 ? 2 : 1)} s`;
    if (seconds < 90) return `${Math.round(seconds)} s`;
    const minutes = Math.round(seconds / 60);
    if (minutes < 90) return `${minutes} min`;
    return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  }
  function bytes(value) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let size = value;
    let unit = 0;
    while (size >= 1024 && unit < units.length - 1) {
      size /= 1024;
      unit += 1;
    }
    return `${size >= 100 ? Math.round(size) : Number(size.toPrecision(3))} ${units[unit]}`;
  }
  function ago(time, now = Date.now()) {
    return `${duration(Math.max(0, (now - Date.parse(time)) / 1e3))} ago`;
  }
  function metricValue(name, value) {
    if (value === null || value === void 0) return "–";
    if (/peak_memory|_bytes$/.test(name)) return bytes(value);
    if (/_time$/.test(name)) return duration(value);
    return number(value);
  }
  function settingText(value) {
    if (value === null || value === void 0) return "not set";
    if (typeof value === "string") return value;
    const isSmall = typeof value === "number" && value !== 0 && Math.abs(value) < 1e-3;
    return isSmall ? value.toExponential() : JSON.stringify(value);
  }
  function kindName(kind) {
    return { step: "Trained on", dropped: "Not trained on", eval: "Evaluation" }[kind] || kind;
  }

  // src/axes.js
  var STEP_INCREMENTS = [0, 1, 2, 3, 4, 5, 6, 7, 8].flatMap((power) =>
    [1, 2, 5].map((digit) => digit * 10 ** power),
  );
  function stepRange(first, last) {
    return first === last ? [first - 0.5, first + 0.5] : [first, last];
  }
  function constantRange(value, log) {
    if (log) return [value / 10, value * 10];
    if (value === 0) return [0, 1];
    return value > 0 ? [0, 2 * value] : [2 * value, 0];
  }
  function tickText(name, tick, increment) {
    if (tick === 0) return "0";
    if (/peak_memory|_bytes$/.test(name)) return metricValue(name, tick).replace("iB", "");
    const size = Math.abs(tick);
    if (size >= 1e4) return `${fixed(tick / 1e3, increment / 1e3)}k`;
    if (size < 0.01 && digitsOf(increment) > 4) return Number(tick.toPrecision(6)).toExponential();
    return fixed(tick, increment);
  }
  function fixed(tick, increment) {
    return tick.toFixed(digitsOf(increment));
  }
  function digitsOf(value) {
    for (let digits = 0; digits < 12; digits += 1) {
      const scaled = value * 10 ** digits;
      if (scaled > 0.5 && Math.abs(scaled - Math.round(scaled)) < 1e-6 * scaled) return digits;
    }
    return 12;
  }

  // src/curves.js
  function smooth(values, weight) {
    if (!weight) return values;
    let mean = 0;
    let sum = 0;
    return values.map((value) => {
      mean = weight * mean + (1 - weight) * value;
      sum = weight * sum + (1 - weight);
      return mean / sum;
    });
  }
  function joinSteps(curves) {
    const steps = [...new Set(curves.flatMap(([own]) => own))].sort((a, b) => a - b);
    const place = new Map(steps.map((step, index) => [step, index]));
    const columns = curves.map(([own, values]) => {
      const column = new Array(steps.length).fill(null);
      own.forEach((step, index) => {
        column[place.get(step)] = values[index];
      });
      return column;
    });
    return [steps, ...columns];
  }
  function positive(values) {
    return values.map((value) => (value > 0 ? value : null));
  }
  function drawnOnce(runs) {
    const groups = /* @__PURE__ */ new Map();
    for (const name of new Set(runs.flatMap(({ names }) => names))) {
      const key = JSON.stringify(runs.map((run) => sameness(run, name)));
      groups.set(key, [...(groups.get(key) ?? []), name]);
    }
    return new Map(
      [...groups.values()].map((group) => {
        const [drawn, ...aliases] = group.sort(byImportance);
        return [drawn, aliases];
      }),
    );
  }
  function sameness({ names, same = [] }, name) {
    const group = same.findIndex((members) => members.includes(name));
    if (group >= 0) return group;
    return names.includes(name) ? name : null;
  }
  var GROUPS = [
    ["Rewards", /^rollout\/(reward\/|rewards\/|pass@)|^eval\/.*\/(reward|pass@\d+)$/],
    ["Responses", /^(rollout|eval\/.*)\/(response_len\/|truncated_ratio|repetition_frac|log_probs|info\/)/],
    ["Learning", /^train\//],
    [
      "Filters and failures",
      /\/(dropped|dropped_samples|masked_samples)\/|\/(failed|late|bad_answers|zero_std\/count)$/,
    ],
    ["Staleness and caches", /\/(staleness\/|buffer\/|off_policy_frac|prefix_cache_hit_rate)/],
    ["Speculative decoding", /^rollout\/spec_/],
    ["Speed", /^perf\/(tokens_per_second|mfu)/],
    ["Time of a step", /^perf\/.*(_time|wait_ratio)$/],
    ["Memory and transfers", /^perf\/(peak_memory|weight_sync_bytes)/],
  ];
  var FIRST = ["rollout/reward/mean", "train/loss", "perf/step_time", "rollout/response_len/mean"];
  function groupMetrics(names) {
    const groups = new Map([...GROUPS.map(([title]) => [title, []]), ["Other", []]]);
    for (const name of names) {
      const group = GROUPS.find(([, pattern]) => pattern.test(name));
      groups.get(group ? group[0] : "Other").push(name);
    }
    for (const members of groups.values()) members.sort(byImportance);
    return [...groups].filter(([, members]) => members.length);
  }
  function byImportance(a, b) {
    return rank(a) - rank(b) || a.localeCompare(b);
  }
  function rank(name) {
    const first = FIRST.indexOf(name);
    if (first >= 0) return first - 10;
    return /^eval\/.*\/reward$/.test(name) ? -5 : 0;
  }

  // src/dom.js
  var BLOCK = 2e4;
  var END = 24;
  var BIDI = /[\u200e\u200f\u202a-\u202e\u2066-\u2069\u061c]/;
  var HIDDEN =
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\u061c\ufeff\ufff9-\ufffb]/g;
  function el(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === void 0 || value === null || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "class") element.className = value;
      else if (name === "style")
        for (const [key, item] of Object.entries(value)) element.style.setProperty(key, item);
      else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
      else element.setAttribute(name, value === true ? "" : String(value));
    }
    element.append(
      ...children.flat(2).filter((child) => child !== null && child !== void 0 && child !== false),
    );
    return element;
  }
  function replace(parent, ...children) {
    parent.replaceChildren(
      ...children.flat(2).filter((child) => child !== null && child !== void 0 && child !== false),
    );
    return parent;
  }
  function foreign(text) {
    const shown = document.createDocumentFragment();
    let start2 = 0;
    for (const match of text.matchAll(HIDDEN)) {
      shown.append(text.slice(start2, match.index), hidden(match[0]));
      start2 = match.index + match[0].length;
    }
    shown.append(text.slice(start2));
    return shown;
  }
  function longText(text) {
    if (text.length <= 2 * BLOCK) return el("pre", {}, foreign(text));
    const blocks = [];
    for (let start2 = 0; start2 < text.length;) {
      const block = text.slice(start2, start2 + BLOCK);
      const lines = block.slice(0, block.lastIndexOf("\n") + 1) || block;
      blocks.push(el("span", { class: "block" }, foreign(lines)));
      start2 += lines.length;
    }
    return el("pre", {}, blocks);
  }
  function oneLine(text, most = 160) {
    const line = text
      .slice(0, most * 2)
      .replace(/\s+/g, " ")
      .trim();
    return foreign(line.length > most || text.length > most * 2 ? `${line.slice(0, most)}…` : line);
  }
  function bothEnds(text) {
    const line = text.replace(/\s+/g, " ").trim();
    const cut = Math.max(0, line.length - END);
    return el(
      "span",
      { class: "both-ends" },
      el("span", { class: "start" }, foreign(line.slice(0, cut))),
      el("span", {}, foreign(line.slice(cut))),
    );
  }
  function hidden(character) {
    const code = `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    const what = BIDI.test(character) ? "changes the direction of text" : "invisible";
    return el("span", { class: "hidden-character", title: `${code}, ${what}` }, `⟨${code}⟩`);
  }
  function announce(text) {
    document.getElementById("live").textContent = text;
  }

  // src/charts.js
  var HEIGHT = 185;
  var SYNC_KEY = "steps";
  function colours() {
    const style = getComputedStyle(document.documentElement);
    return [1, 2, 3, 4, 5, 6, 7, 8].map((index) => style.getPropertyValue(`--run-${index}`).trim());
  }
  var Chart = class {
    // onZoom takes the first and the last step, or null for all.
    constructor(name, onZoom) {
      this.name = name;
      this.onZoom = onZoom;
      this.value = el("span", { class: "chart-value" });
      this.aliases = el("span", { class: "aliases" });
      this.canvas = el("div", { class: "chart-canvas", role: "img" });
      this.element = el(
        "figure",
        { class: "chart", "data-metric": name },
        el("figcaption", {}, el("span", { class: "chart-name", title: name }, name), this.value),
        this.aliases,
        this.canvas,
      );
      this.plot = null;
    }
    // Names the metrics that are the same number as this one.
    setAliases(names) {
      this.aliases.textContent = names.length ? `same as ${names.join(", ")}` : "";
      this.aliases.title = this.aliases.textContent;
    }
    // curves: [{label, colour, curve: [steps, values]}]
    draw(curves, { weight, log, zoom }) {
      const drawn = curves.flatMap((own) => this.lines(own, weight, log));
      const table = joinSteps(drawn.map((line) => line.curve));
      const last = curves
        .map(({ colour, curve }) => [colour, curve[1].at(-1)])
        .filter(([, value]) => value !== void 0);
      replace(
        this.value,
        last.map(([colour, value]) =>
          el("span", last.length > 1 ? { style: { color: colour } } : {}, metricValue(this.name, value)),
        ),
      );
      this.canvas.setAttribute("aria-label", this.describe(curves));
      this.plot?.destroy();
      this.canvas.replaceChildren();
      if (!drawn.some(({ curve }) => curve[1].some((value) => value !== null))) {
        this.canvas.append(el("p", { class: "empty" }, log ? "no values above 0" : "no values"));
        this.plot = null;
        return;
      }
      this.plot = new uPlot(this.options(drawn, log, zoom, table[0].length), table, this.canvas);
    }
    lines({ label, colour, curve }, weight, log) {
      const values = log ? positive(curve[1]) : curve[1];
      const raw = { label, colour, curve: [curve[0], values], faint: weight > 0 };
      if (!weight) return [raw];
      return [
        raw,
        { label: `${label}, smoothed`, colour, curve: [curve[0], smooth(values, weight)], faint: false },
      ];
    }
    options(lines, log, zoom, points) {
      const style = getComputedStyle(document.documentElement);
      const axis = {
        stroke: style.getPropertyValue("--faint"),
        grid: { stroke: style.getPropertyValue("--grid"), width: 1 },
        ticks: { show: false },
        font: "11px system-ui, sans-serif",
      };
      return {
        width: Math.max(200, this.canvas.clientWidth || 320),
        height: HEIGHT,
        legend: { show: true, live: true },
        cursor: { sync: { key: SYNC_KEY }, drag: { x: true, y: false, setScale: true }, points: { size: 6 } },
        scales: {
          x: {
            time: false,
            range: (_, first, last) => stepRange(first, last),
            ...(zoom ? { min: zoom[0], max: zoom[1] } : {}),
          },
          y: { ...(log ? { distr: 3 } : {}), range: (_, low, high) => valueRange(low, high, log) },
        },
        axes: [
          { ...axis, size: 28, incrs: STEP_INCREMENTS },
          {
            ...axis,
            size: 54,
            values: (_, ticks2, index, space, increment) => this.ticks(ticks2, log || increment),
          },
        ],
        series: [
          { label: "step", value: (_, step) => step ?? "last" },
          ...lines.map((line) => ({
            label: line.label,
            stroke: line.colour,
            width: line.faint ? 1 : 1.6,
            alpha: line.faint ? 0.3 : 1,
            spanGaps: true,
            class: line.faint ? "faint" : "full",
            points: { show: points < 40 && !line.faint, size: 4 },
            // Without a cursor the legend has the last values.
            value: (_, value, series, index) =>
              metricValue(this.name, index === null ? line.curve[1].at(-1) : value),
          })),
        ],
        hooks: { setSelect: [(plot) => this.selected(plot)] },
      };
    }
    // increment: the distance between ticks; true: they are those of a log scale.
    ticks(ticks2, increment) {
      return ticks2.map((tick) =>
        tick === null ? "" : tickText(this.name, tick, increment === true ? tick : increment),
      );
    }
    selected(plot) {
      const { left, width } = plot.select;
      if (width < 2) return;
      this.onZoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
    }
    describe(curves) {
      const parts = curves.map(({ label, curve: [steps, values] }) =>
        values.length
          ? `${label}: ${number(values[0])} at step ${steps[0]}, ${number(values.at(-1))} at step ${steps.at(-1)}`
          : `${label}: no values`,
      );
      return `${this.name}. ${parts.join(". ")}`;
    }
    resize() {
      this.plot?.setSize({ width: Math.max(200, this.canvas.clientWidth), height: HEIGHT });
    }
  };
  function valueRange(low, high, log) {
    if (low === null) return log ? [1, 10] : [0, 1];
    if (low === high) return constantRange(low, log);
    return log ? uPlot.rangeLog(low, high, 10, false) : uPlot.rangeNum(low, high, 0.1, true);
  }

  // src/state.js
  var REFRESH_MILLISECONDS = 2e3;
  var MAX_SELECTED = 8;
  var PageState = class {
    runs = [];
    selected = [0];
    // the numbers of the selected runs, ascending
    screen = null;
    // the open screen
    charts = chartsOf({});
    // the settings of the overview's charts
    isLost = false;
    // the last refresh failed
    #opened = "";
    // the address and the selection for which the screen was opened
    // source: a ServerSource or a FileSource.
    constructor(source) {
      this.source = source;
    }
    // Reads the runs. The metrics of runs that are not selected are not read.
    async readRuns() {
      this.runs = await this.source.ask("runs", { selected: this.selected.join(",") });
    }
    // Takes over what an address says; what it leaves out becomes the default.
    follow({ name, parameters }) {
      this.selected = this.#selection(parameters.runs);
      if (name === "overview") this.charts = chartsOf(parameters);
    }
    // Returns the address of a screen; `run` in its parameters is the number of a run.
    address(name, parameters = {}, selected = this.selected) {
      const charts = name === "overview" ? chartParameters(this.charts) : {};
      const named = { ...parameters, ...charts };
      delete named.runs;
      delete named.run;
      if (this.runs.length > 1) {
        if (parameters.run !== void 0 && selected.length > 1) named.run = this.#key(parameters.run);
        named.runs = selected.map((number2) => this.#key(number2)).join(",");
      }
      return addressOf(name, given(named));
    }
    // Returns the number of the run that a screen shows if it shows only one.
    runOf({ run }) {
      return (run === void 0 ? null : this.#number(run)) ?? this.selected[0];
    }
    // Returns the selection with a run added, or removed unless it is the only one.
    toggled(number2) {
      const others = this.selected.filter((own) => own !== number2);
      if (!this.selected.includes(number2)) return [...others, number2].sort((a, b) => a - b);
      return others.length ? others : this.selected;
    }
    // Returns whether the screen must be opened: its address or the selection has changed.
    mustOpen(address2) {
      const wanted = `${address2} ${this.selected.join(",")}`;
      const isNew = wanted !== this.#opened;
      this.#opened = wanted;
      return isNew;
    }
    // Makes the next call of mustOpen return true.
    forgetOpened() {
      this.#opened = "";
    }
    // Returns how long to wait for the next refresh; null: a file does not change.
    refreshDelay(isHidden) {
      if (this.source.isFile) return null;
      return isHidden ? 5 * REFRESH_MILLISECONDS : REFRESH_MILLISECONDS;
    }
    #selection(keys) {
      const all = this.runs.map((_, number2) => number2).slice(0, MAX_SELECTED);
      if (keys === "all") return all;
      const numbers = (keys ?? "").split(",").map((key) => this.#number(key));
      const known = [...new Set(numbers)].filter((number2) => number2 !== null).sort((a, b) => a - b);
      if (known.length) return known;
      return this.source.isFile ? all : [0];
    }
    // An address names a run by its name, which stays the same when the page is made again, or else by its number.
    #key(number2) {
      const { name } = this.runs[number2];
      const isUnique = this.runs.filter((run) => run.name === name).length === 1;
      return isUnique && !name.includes(",") ? name : String(number2);
    }
    #number(key) {
      const number2 = this.runs.findIndex((_, own) => this.#key(own) === key);
      return number2 < 0 ? null : number2;
    }
  };
  function chartsOf({ filter = "", smoothing, log, from, to }) {
    const zoom = [from, to].map(Number);
    const weight = Number(smoothing);
    return {
      text: filter,
      weight: weight >= 0 && weight < 1 ? weight : 0,
      log: log === "1",
      zoom: from && to && zoom.every(Number.isFinite) ? zoom : null,
    };
  }
  function chartParameters({ text, weight, log, zoom }) {
    const [from, to] = (zoom ?? []).map((step) => Number(step.toFixed(2)));
    return { filter: text, smoothing: weight || "", log: log ? "1" : "", from: from ?? "", to: to ?? "" };
  }

  // src/sweep.js
  function sweepTable(state, table) {
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
  function allTrials(state, { trials }) {
    const runs = trials.map(({ run }) => run).filter((run) => run !== null);
    if (runs.length < 2) return null;
    const shown = runs.sort((a, b) => a - b).slice(0, MAX_SELECTED);
    const text = shown.length < runs.length ? `the first ${shown.length} trials` : "all trials";
    return [" · ", el("a", { href: state.address("overview", {}, shown) }, text)];
  }
  function sweptKeys(trials) {
    return [...new Set(trials.flatMap(({ values }) => Object.keys(values)))];
  }
  function summaryOf({ metric, goal, trials }) {
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

  // src/overview.js
  var ADDRESS_MILLISECONDS = 250;
  var Overview = class {
    constructor(state, parameters, go2) {
      this.state = state;
      this.go = go2;
      this.settings = state.charts;
      this.charts = /* @__PURE__ */ new Map();
      this.visible = /* @__PURE__ */ new Set();
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
        this.state.runs.map((run, number2) =>
          this.state.selected.includes(number2) ? card(run, number2) : null,
        ),
      );
      this.showSweeps();
      const lines = this.state.selected
        .map((number2) => `${number2}:${this.state.runs[number2].lines}`)
        .join();
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
      const drawn = drawnOnce(this.state.selected.map((number2) => this.state.runs[number2]));
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
  };
  function card(run, number_) {
    const share = run.steps ? Math.min(1, run.step / run.steps) : 0;
    const left = run.status === "running" ? run.seconds_left : null;
    const facts2 = [
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
        facts2.map(([name, value]) => el("div", {}, el("dt", {}, foreign(name)), el("dd", {}, value))),
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

  // src/conversation.js
  function promptTurns(prompt) {
    if (!Array.isArray(prompt)) return [{ role: "user", content: prompt }];
    return prompt.map((message) =>
      message && typeof message === "object" ? message : { role: "?", content: message },
    );
  }
  function responseTurns(text, values) {
    if (
      !values ||
      !values.loss_mask ||
      values.pieces.some((piece) => piece === null) ||
      values.ids.length < values.num_tokens
    )
      return [{ role: "assistant", content: text }];
    const turns = [];
    values.pieces.forEach((piece, index) => {
      const isGiven = values.loss_mask[index] === 0 && !values.log_probs[index];
      const role = isGiven ? "environment" : "assistant";
      if (turns.at(-1)?.role === role) turns.at(-1).content += piece;
      else turns.push({ role, content: piece });
    });
    return turns.length > 1 ? turns : [{ role: "assistant", content: text }];
  }
  function turnView({ role, content, ...others }) {
    const more = Object.entries(others).filter(
      ([name, value]) => value !== null && value !== void 0 && name !== "images",
    );
    return el(
      "section",
      { class: `turn ${/^[a-z]+$/.test(role) ? role : ""}`, "aria-label": String(role) },
      el("h3", {}, foreign(String(role))),
      contentView(content),
      more.map(([name, value]) =>
        el(
          "details",
          { open: name === "tool_calls" },
          el("summary", {}, foreign(name)),
          el("pre", {}, foreign(JSON.stringify(value, null, 1))),
        ),
      ),
    );
  }
  function contentView(content) {
    if (Array.isArray(content)) return content.map((part) => partView(part));
    return longText(
      content === null || content === void 0
        ? ""
        : typeof content === "string"
          ? content
          : JSON.stringify(content, null, 1),
    );
  }
  function partView(part) {
    if (part?.type === "text") return contentView(part.text);
    if (part?.type === "image") return el("p", { class: "hint" }, "[image]");
    return contentView(part);
  }

  // src/samples.js
  var ORDERS = {
    newest: "newest first",
    oldest: "oldest first",
    worst: "worst reward first",
    best: "best reward first",
    longest: "longest first",
    shortest: "shortest first",
    disagreed: "groups that disagree most",
  };
  var PAGE = 100;
  var MAX_HITS = 200;
  var Samples = class {
    constructor(state, parameters, go2) {
      this.state = state;
      this.parameters = { kind: "step", order: "newest", ...parameters };
      this.go = go2;
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
          Object.entries(ORDERS).map(([order2, name]) =>
            el("option", { value: order2, selected: this.parameters.order === order2 }, name),
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
      const next = new Map(this.state.selected.map((run) => [run, ""]));
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
    showPages(count2, shown) {
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
        shown === PAGE && offset + PAGE < count2 ? link(offset + PAGE, "Next ›") : null,
      );
    }
  };
  function rewardCell(reward) {
    const kind = reward === null ? "none" : reward > 0 ? "good" : "bad";
    return el("span", { class: `reward ${kind}` }, number(reward));
  }
  var sampleColumns = [
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
  var searchColumns = [...sampleColumns.slice(0, 4), ["text", (row) => oneLine(row.excerpt, 180), "found"]];
  var groupColumns = [
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
    const [done, all] = [indexed, files].map((count2) => count2.toLocaleString("en-GB"));
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

  // src/tokens.js
  var SHOWN = 4e3;
  var MODES = {
    log_probs: ["log-prob", (values, index) => values.log_probs?.[index]],
    gap: [
      "engine–trainer gap",
      (values, index) =>
        (values.trainer_log_probs?.[index] ?? null) === null || values.log_probs[index] === null
          ? null
          : values.trainer_log_probs[index] - values.log_probs[index],
    ],
    advantages: ["advantage", (values, index) => values.advantages?.[index]],
    mask: ["loss mask", (values, index) => values.loss_mask?.[index]],
  };
  function availableModes(values) {
    const has = {
      log_probs: values.log_probs,
      gap: values.trainer_log_probs,
      advantages: values.advantages,
      mask: values.loss_mask,
    };
    return Object.keys(MODES).filter((mode) => has[mode]);
  }
  function shade(mode, value, most) {
    if (value === null || value === void 0) return null;
    if (mode === "log_probs") return { kind: "low", share: Math.min(1, -value / 6) };
    if (mode === "mask") return { kind: "high", share: value > 0 ? 0.6 : 0 };
    return { kind: value < 0 ? "low" : "high", share: most ? Math.min(1, Math.abs(value) / most) : 0 };
  }
  function tokenView(values, reasons = "") {
    const modes = availableModes(values);
    const box = el("div", { class: "tokens" });
    const legend = el("p", { class: "hint" });
    let shown = SHOWN;
    let mode = modes[0];
    const draw = () => {
      const [name, valueOf] = MODES[mode];
      const of = values.ids.map((_, index) => valueOf(values, index));
      const most = of.reduce((largest, value) => Math.max(largest, Math.abs(value ?? 0)), 0);
      replace(
        box,
        values.ids.slice(0, shown).map((id, index) => token(values, index, id, mode, of[index], most)),
      );
      if (shown < values.ids.length)
        box.append(
          el(
            "button",
            {
              type: "button",
              onclick: () => {
                shown += 5 * SHOWN;
                draw();
              },
            },
            `Show more of ${values.num_tokens.toLocaleString("en-GB")} tokens`,
          ),
        );
      legend.textContent = `Coloured by ${name}: ${legendText(mode, most)}${reasons ? ` · ${reasons}` : ""}`;
    };
    const buttons = modes.map((own) =>
      el(
        "button",
        {
          type: "button",
          "aria-pressed": String(own === mode),
          "data-mode": own,
          onclick: (event) => {
            mode = own;
            for (const button of buttons)
              button.setAttribute("aria-pressed", String(button === event.currentTarget));
            draw();
          },
        },
        MODES[own][0],
      ),
    );
    draw();
    return el(
      "section",
      { class: "token-view", "aria-label": "Tokens" },
      el("div", { class: "choices", role: "group", "aria-label": "Colour tokens by" }, buttons),
      legend,
      box,
    );
  }
  function token(values, index, id, mode, value, most) {
    const piece = values.pieces[index];
    const colour = shade(mode, value, most);
    const given2 = values.loss_mask && values.loss_mask[index] === 0 && !values.log_probs?.[index];
    const facts2 = Object.entries(MODES)
      .map(([, [name, valueOf]]) => [name, valueOf(values, index)])
      .filter(([, own]) => own !== null && own !== void 0)
      .map(([name, own]) => `${name} ${number(own)}`);
    const attributes = {
      class: `token ${colour ? colour.kind : ""} ${given2 ? "given" : ""}`,
      title: `token ${id}, ${facts2.join(", ")}`,
    };
    if (colour) attributes.style = { "--share": String(Math.round(colour.share * 100) / 100) };
    return el(
      "span",
      attributes,
      piece === null ? el("small", {}, `[${id}]`) : foreign(piece === "\n" ? "↵\n" : piece),
    );
  }
  function legendText(mode, most) {
    if (mode === "log_probs") return "the darker, the less likely";
    if (mode === "mask") return "coloured tokens are trained on";
    return `blue above 0, red below; the strongest is ${number(most)}`;
  }

  // src/sample.js
  var SamplePage = class {
    constructor(state, parameters, go2) {
      this.state = state;
      this.source = state.source;
      this.run = state.runOf(parameters);
      this.parameters = parameters;
      this.go = go2;
      this.element = el("article", { class: "sample" }, el("p", { class: "empty" }, "Loading …"));
      this.load();
    }
    close() {}
    update() {
      if (this.isIndexing) this.showHistory();
    }
    async load(whole = "") {
      const { kind, step, line } = this.parameters;
      const record = await this.source.ask("sample", { run: this.run, kind, step, line, whole });
      this.record = record;
      this.history = el("div", {});
      replace(
        this.element,
        this.heading(record),
        facts(record),
        rewardTable(record),
        record.cut ? this.cutNote(record.cut) : null,
        el(
          "div",
          { class: "conversation" },
          promptTurns(record.prompt).map(turnView),
          this.images(record, "prompt"),
          responseTurns(String(record.response ?? ""), record.token_values).map(turnView),
          this.images(record, "response"),
        ),
        record.token_values
          ? tokenView(record.token_values, gapReason(record))
          : el("p", { class: "hint" }, noTokens(record)),
        expected(record),
        this.history,
      );
      this.showHistory();
    }
    // Opens the sample before or after this one; the keys p and n do this.
    move(by) {
      const line = Number(this.parameters.line) + by;
      if (line >= 1) this.go("sample", { ...this.parameters, run: this.run, line });
    }
    heading(record) {
      const { kind, step, row, dataset } = record;
      const { state, run } = this;
      const group = state.address("group", { run, kind, step, row: row ?? "", dataset: dataset ?? "" });
      return el(
        "header",
        { class: "sample-head" },
        el("h1", {}, "Sample ", foreign(String(record.id ?? "")), runNote(state, run)),
        el(
          "nav",
          { class: "choices", "aria-label": "Samples" },
          el("button", { type: "button", onclick: () => this.move(-1) }, "‹ Previous"),
          el("button", { type: "button", onclick: () => this.move(1) }, "Next ›"),
          el("a", { class: "button", href: group }, "Whole group"),
          el("a", { class: "button", href: state.address("samples", { kind }) }, "All samples"),
        ),
      );
    }
    cutNote(cut) {
      const size = Object.values(cut).reduce((sum, count2) => sum + count2, 0);
      return el(
        "p",
        { class: "notice" },
        `${size.toLocaleString("en-GB")} more characters are not shown. `,
        el("button", { type: "button", onclick: () => this.load("1") }, "Show all"),
      );
    }
    images(record, part) {
      const placed = pairs(record.images?.[part]);
      if (!placed.length) return null;
      return el(
        "div",
        { class: "images" },
        placed.map(([digest, count2], index) => {
          const image = el("img", { alt: `image ${index + 1} of the ${part}` });
          this.source.ask("image", { run: this.run, digest }).then(
            (address2) => {
              image.src = address2;
            },
            (error) => image.replaceWith(foreign(error.message)),
          );
          return el(
            "figure",
            {},
            image,
            el("figcaption", {}, `image ${index + 1} of the ${part}, ${count2} tokens`),
          );
        }),
      );
    }
    async showHistory() {
      if (!this.record.row) return;
      const { samples, index } = await this.source.ask("history", {
        run: this.run,
        row: this.record.row,
        dataset: this.record.dataset ?? "",
      });
      this.isIndexing = index.indexed < index.files || !samples.length;
      if (samples.length < 2) return;
      const rows = samples.slice(0, 500).map((own) =>
        el(
          "li",
          {
            "aria-current":
              own.step === this.record.step && own.line === this.record.line && own.kind === this.record.kind
                ? "true"
                : null,
          },
          el(
            "a",
            {
              href: this.state.address("sample", {
                run: this.run,
                kind: own.kind,
                step: own.step,
                line: own.line,
              }),
            },
            `${own.kind === "eval" ? "evaluation " : ""}step ${own.step}`,
          ),
          rewardCell(own.reward),
        ),
      );
      replace(
        this.history,
        el("h2", {}, `The same prompt over the steps (${samples.length.toLocaleString("en-GB")} samples)`),
        el("ol", { class: "history" }, rows),
      );
    }
  };
  var GroupPage = class {
    constructor(state, parameters) {
      this.state = state;
      this.source = state.source;
      this.run = state.runOf(parameters);
      this.parameters = parameters;
      this.element = el("article", { class: "group-page" }, el("p", { class: "empty" }, "Loading …"));
      this.isEmpty = false;
      this.load();
    }
    close() {}
    // The index may not have the group yet.
    update() {
      if (this.isEmpty) this.load();
    }
    async load() {
      const { kind, step, row, dataset = "" } = this.parameters;
      const members = await this.source.ask("group", { run: this.run, kind, step, row, dataset });
      this.isEmpty = !members.length;
      if (this.isEmpty)
        return replace(this.element, el("p", { class: "empty" }, "This group has no samples here."));
      const rewards = members.map((record) => record.reward).filter((reward) => typeof reward === "number");
      const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
      return replace(
        this.element,
        el(
          "header",
          { class: "sample-head" },
          el(
            "h1",
            {},
            "Prompt ",
            foreign([dataset, row].filter(Boolean).join(" · ")),
            runNote(this.state, this.run),
            `, step ${step}`,
          ),
          el("p", { class: "hint" }, `${members.length} samples, mean reward ${number(mean)}`),
        ),
        el("div", { class: "conversation" }, promptTurns(members[0].prompt).map(turnView)),
        el(
          "div",
          { class: "side-by-side" },
          members.map((record) =>
            el(
              "section",
              { class: "member", "aria-label": `Sample ${record.id}` },
              el(
                "h2",
                {},
                el(
                  "a",
                  { href: this.state.address("sample", { run: this.run, kind, step, line: record.line }) },
                  oneLine(String(record.id), 40),
                ),
                rewardCell(typeof record.reward === "number" ? record.reward : null),
              ),
              facts(record),
              longText(String(record.response ?? "")),
              record.failure ? el("p", { class: "problem" }, foreign(String(record.failure))) : null,
            ),
          ),
        ),
      );
    }
  };
  function runNote(state, run) {
    return state.runs.length > 1 ? foreign(` of ${state.runs[run].name}`) : null;
  }
  function pairs(value) {
    return Array.isArray(value) ? value.filter(Array.isArray) : [];
  }
  function facts(record) {
    const versions = pairs(record.versions);
    const oldest = versions.length ? Math.min(...versions.map(([version]) => version)) : null;
    const entries = [
      ["Step", `${record.step} (${kindName(record.kind)})`],
      ["Status", record.status],
      [
        "Tokens",
        record.tokens === void 0
          ? null
          : `${record.tokens}${record.trained_tokens === void 0 ? "" : `, ${record.trained_tokens} trained on`}`,
      ],
      ["Row", [record.dataset, record.row].filter((part) => part !== null && part !== void 0).join(" · ")],
      [
        "Weights",
        versions.length
          ? versions
              .map(([version, start2, end]) =>
                versions.length > 1 ? `version ${version} (tokens ${start2}–${end})` : `version ${version}`,
              )
              .join(", ")
          : null,
      ],
      [
        "Staleness",
        record.kind === "step" && oldest !== null
          ? `${Math.max(0, record.step - 1 - oldest)} versions`
          : null,
      ],
      [
        "Rewards of turns",
        pairs(record.turn_rewards)
          .map(([, reward]) => number(reward))
          .join(", "),
      ],
      [
        "Filters",
        Array.isArray(record.verdicts) && record.verdicts.length ? record.verdicts.join(", ") : null,
      ],
    ];
    return el(
      "dl",
      { class: "facts" },
      entries
        .filter(([, value]) => value !== null && value !== void 0 && value !== "")
        .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, foreign(String(value))))),
    );
  }
  function rewardTable(record) {
    const rewards =
      record.rewards && typeof record.rewards === "object" ? Object.entries(record.rewards) : [];
    const details = record.details && typeof record.details === "object" ? record.details : {};
    const rows = rewards.map(([name, value]) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, foreign(name)),
        el("td", { class: "number" }, typeof value === "number" ? rewardCell(value) : foreign(String(value))),
        el(
          "td",
          {},
          details[name]
            ? Object.entries(details[name]).map(([key, own]) =>
                el(
                  "div",
                  {},
                  el("b", {}, foreign(key), ": "),
                  foreign(typeof own === "number" ? number(own) : String(own)),
                ),
              )
            : "",
        ),
      ),
    );
    const total = el(
      "tr",
      { class: "total" },
      el("th", { scope: "row" }, "reward"),
      el("td", { class: "number" }, rewardCell(typeof record.reward === "number" ? record.reward : null)),
      el("td", {}),
    );
    return el(
      "section",
      { class: "rewards", "aria-label": "Rewards" },
      record.failure ? el("p", { class: "problem" }, foreign(String(record.failure))) : null,
      el("table", {}, el("tbody", {}, rows, total)),
    );
  }
  function expected(record) {
    const parts = [
      ["Expected answer", record.label],
      ["Notes of the rollout", record.info],
    ].filter(([, value]) => value !== null && value !== void 0 && JSON.stringify(value) !== "{}");
    return parts.map(([name, value]) =>
      el(
        "details",
        { open: name === "Expected answer" },
        el("summary", {}, name),
        el("pre", {}, foreign(typeof value === "string" ? value : JSON.stringify(value, null, 1))),
      ),
    );
  }
  function noTokens(record) {
    return record.tokens === 0 && record.response
      ? "The server that answered returned text, without token ids or log-probs."
      : "No tokens were saved for this sample: runs keep 16,384 of each file, or all with debug.save_rollouts.";
  }
  function gapReason(record) {
    return record.token_values.trainer_log_probs
      ? ""
      : "no gap: the trainer computes its own log-probs beforehand only where a step has several optimizer steps";
  }

  // src/local_samples.js
  var ORDERS2 = {
    newest: [],
    oldest: [(a, b) => a.step - b.step, (a, b) => a.line - b.line],
    best: [(a, b) => b.reward - a.reward, (a, b) => b.step - a.step, (a, b) => b.line - a.line],
    worst: [(a, b) => a.reward - b.reward],
    longest: [(a, b) => b.tokens - a.tokens],
    shortest: [(a, b) => a.tokens - b.tokens],
  };
  var THEN = [(a, b) => b.step - a.step, (a, b) => a.line - b.line];
  function matches(row, filters) {
    const bounds = [
      ["from_step", (limit) => row.step >= limit],
      ["to_step", (limit) => row.step <= limit],
      ["min_reward", (limit) => row.reward !== null && row.reward >= limit],
      ["max_reward", (limit) => row.reward !== null && row.reward <= limit],
      ["min_tokens", (limit) => row.tokens >= limit],
      ["max_tokens", (limit) => row.tokens <= limit],
    ];
    if (row.kind !== (filters.kind || "step")) return false;
    if (bounds.some(([name, fits]) => filters[name] && !fits(Number(filters[name])))) return false;
    if (["status", "dataset", "row"].some((name) => filters[name] && row[name] !== filters[name]))
      return false;
    if (filters.failed && !row.failed) return false;
    return !(["best", "worst"].includes(filters.order) && row.reward === null);
  }
  function querySamples(rows, filters, page = 100) {
    const order2 = [...(ORDERS2[filters.order] || []), ...THEN];
    const found = rows.filter((row) => matches(row, filters));
    found.sort((a, b) => order2.reduce((sign, compare2) => sign || compare2(a, b), 0));
    const offset = Number(filters.offset || 0);
    return { rows: found.slice(offset, offset + page), count: found.length, is_exact: true, page };
  }
  function queryGroups(rows, filters, page = 100) {
    const groups = /* @__PURE__ */ new Map();
    for (const row of rows) {
      if (!matches(row, { ...filters, order: "", status: "", dataset: "", failed: "" })) continue;
      const key = JSON.stringify([row.run, row.step, row.row, row.dataset]);
      groups.set(key, [...(groups.get(key) || []), row]);
    }
    const found = [...groups.values()].map(summary).filter((group) => group.spread !== null);
    found.sort((a, b) => b.spread - a.spread || b.step - a.step || a.line - b.line);
    const offset = Number(filters.offset || 0);
    return { rows: found.slice(offset, offset + page), count: found.length, is_exact: true, page };
  }
  function summary(members) {
    const rewards = members.map((row2) => row2.reward).filter((reward) => reward !== null);
    const largest = Math.max(...rewards.map(Math.abs)) || 1;
    const scaled = rewards.map((reward) => reward / largest);
    const mean = scaled.reduce((sum, reward) => sum + reward, 0) / scaled.length;
    const squares = scaled.reduce((sum, reward) => sum + (reward - mean) ** 2, 0);
    const { run, kind, step, line, row, dataset, prompt } = members[0];
    const spread = rewards.length > 1 ? Math.sqrt(squares / rewards.length) * largest : null;
    return {
      run,
      kind,
      step,
      line,
      row,
      dataset,
      prompt,
      samples: members.length,
      mean: mean * largest,
      spread,
    };
  }
  function excerptOf(record, text) {
    for (const name of ["prompt", "response", "label", "failure", "id", "row"]) {
      const value = record[name] ?? "";
      const shown = typeof value === "string" ? value : JSON.stringify(value);
      const start2 = shown.toLowerCase().indexOf(text.toLowerCase());
      if (start2 >= 0) return shown.slice(Math.max(0, start2 - 60), start2 + text.length + 60);
    }
    return null;
  }

  // src/source.js
  async function openSource() {
    const element = document.getElementById("data");
    if (!element) return new ServerSource();
    const data = await unpack(element.textContent);
    element.remove();
    return new FileSource(data);
  }
  async function unpack(text) {
    const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }
  var ServerSource = class {
    isFile = false;
    // Returns the answer to a question; throws an Error whose message can be shown.
    async ask(name, parameters = {}) {
      const base = location.pathname.replace(/[^/]*$/, "");
      let response;
      try {
        response = await fetch(`${base}api/${name}?${new URLSearchParams(given(parameters))}`);
      } catch {
        throw new Error("rlrun view has ended: start it again");
      }
      const answer = await response.json();
      if (!response.ok) throw new Error(answer.problem || response.statusText);
      return answer;
    }
  };
  var FileSource = class {
    isFile = true;
    #data;
    constructor(data) {
      this.#data = data;
    }
    // Returns the answer that a server would give; throws an Error whose message can be shown.
    async ask(name, parameters = {}) {
      const run = this.#data.runs[Number(parameters.run || 0)];
      const answers = {
        runs: () => this.#data.runs.map((own) => own.status),
        sweeps: () => this.#data.sweeps,
        curves: () => localCurves(run, parameters),
        specs: () => localSpecs(this.#data, parameters),
        timeline: () => localTimeline(run, parameters),
        samples: () => localPage(this.#data, parameters),
        sample: () => localSample(run, parameters),
        group: () => localGroup(run, parameters),
        image: () => run.images[parameters.digest] || "",
        history: () => localHistory(run, parameters),
        search: () => localSearch(run, parameters),
      };
      return answers[name]();
    }
  };
  function localTimeline(run, { step }) {
    return run.timelines[step] || { step, spans: [], steps: [], from: "none" };
  }
  function localGroup(run, parameters) {
    const { kind, step } = parameters;
    return run.samples
      .filter((row) => row.kind === kind && row.step === Number(step) && isOfPrompt(row, parameters))
      .map((row) => run.records[keyOf(row)]);
  }
  function localHistory(run, parameters) {
    const samples = run.samples
      .filter((row) => isOfPrompt(row, parameters))
      .sort((a, b) => a.step - b.step || a.line - b.line);
    return { samples, index: { files: 0, indexed: 0 } };
  }
  function isOfPrompt(sample, { row, dataset }) {
    return sample.row === String(row) && sample.dataset === String(dataset ?? "");
  }
  function keyOf({ kind, step, line }) {
    return `${kind}-${step}-${line}`;
  }
  function localSample(run, parameters) {
    const record = run.records[keyOf(parameters)];
    if (!record) throw new Error("this file does not contain the sample");
    return record;
  }
  function localCurves(run, { names, from, to }) {
    const [first, last] = [from === "" ? -Infinity : Number(from), to === "" ? Infinity : Number(to)];
    return Object.fromEntries(
      JSON.parse(names).map((name) => {
        const [steps, values] = run.curves[name] || [[], []];
        const kept = steps
          .map((step, index) => index)
          .filter((index) => steps[index] >= first && steps[index] <= last);
        return [name, [kept.map((index) => steps[index]), kept.map((index) => values[index])]];
      }),
    );
  }
  function localSpecs({ runs: all, differences }, { runs }) {
    const numbers = runs.split(",").map(Number);
    return {
      spec: all[numbers[0]].spec,
      differences: numbers.slice(1).map((other) => differences[`${numbers[0]}-${other}`] || []),
    };
  }
  function localPage(data, parameters) {
    const numbers = parameters.runs.split(",").map(Number);
    const runs = numbers.map((number2) => data.runs[number2]);
    const rows = numbers.flatMap((run) => data.runs[run].samples.map((row) => ({ run, ...row })));
    const query = parameters.order === "disagreed" ? queryGroups : querySamples;
    const names = { status: /* @__PURE__ */ new Set(), dataset: /* @__PURE__ */ new Set() };
    for (const row of rows.filter((own) => own.kind === (parameters.kind || "step"))) {
      names.status.add(row.status);
      if (row.dataset) names.dataset.add(row.dataset);
    }
    const shown = { status: [...names.status].sort(), dataset: [...names.dataset].sort() };
    return {
      ...query(rows, parameters),
      names: shown,
      problems: runs.flatMap((run) => run.problems),
      index: { files: 1, indexed: 1, error: "" },
      note: noteOf(runs),
    };
  }
  function noteOf(runs) {
    const notes = runs.map(
      ({ note, status }) => note && (runs.length > 1 ? `${status.name}: ${note}` : note),
    );
    return notes.filter(Boolean).join(" · ");
  }
  function localSearch(run, { kind, text }) {
    const rows = run.samples
      .filter((row) => row.kind === kind)
      .map((row) => ({ ...row, excerpt: excerptOf(run.records[keyOf(row)], text) }))
      .filter((row) => row.excerpt !== null)
      .sort((a, b) => b.step - a.step || a.line - b.line);
    return { rows: rows.slice(0, 100), next: null, searched: 1, files: 1 };
  }

  // src/specs.js
  var Specs = class {
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
      const names = this.state.selected.map((number2) => this.state.runs[number2].name);
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
  };
  function rowsOf({ spec = {}, given: given2 }) {
    const rows = leaves(spec, "");
    if (!given2) return { written: null, resolved: rows };
    const keys = new Set(leaves(given2, "").map(([key]) => key));
    return {
      written: rows.filter(([key]) => keys.has(key)),
      resolved: rows.filter(([key]) => !keys.has(key)),
    };
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
        return differences.map((own2) => own2.find((item) => item.key === key)).find(Boolean).before;
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

  // src/timeline.js
  var Timeline = class {
    constructor(state, parameters, go2) {
      this.state = state;
      this.go = go2;
      this.isNewest = !parameters.step;
      this.step = Number(parameters.step || this.newest());
      this.body = el("div", { class: "timelines" });
      this.field = el("input", {
        type: "number",
        min: 0,
        max: Math.max(...state.selected.map((run) => state.runs[run].step)),
        value: this.step,
        id: "step",
        onchange: () => this.show(Number(this.field.value)),
      });
      this.element = el(
        "div",
        { class: "timeline" },
        el(
          "form",
          { class: "controls", onsubmit: (event) => event.preventDefault() },
          el(
            "button",
            { type: "button", onclick: () => this.show(this.step - 1), "aria-label": "Previous step" },
            "‹",
          ),
          el("label", {}, "Step ", this.field),
          el(
            "button",
            { type: "button", onclick: () => this.show(this.step + 1), "aria-label": "Next step" },
            "›",
          ),
          el(
            "a",
            { href: state.address("samples", { from_step: this.step, to_step: this.step }), class: "link" },
            "its samples",
          ),
        ),
        this.body,
      );
      this.draw();
    }
    update() {
      const newest = this.newest();
      if (this.isNewest && newest && newest !== this.step) this.draw(newest);
    }
    // The last step that every selected run has.
    newest() {
      const runs = this.state.selected.map((number2) => this.state.runs[number2]);
      return Math.min(...runs.map((run) => run.timelines[0] || run.step));
    }
    close() {}
    show(step) {
      this.go("steps", { step: Math.max(0, step) });
    }
    async draw(step = this.step) {
      this.step = step;
      this.field.value = step;
      const answers = await Promise.all(
        this.state.selected.map((run) => this.state.source.ask("timeline", { run, step })),
      );
      replace(
        this.body,
        this.state.selected.map((run, index) => this.lanes(this.state.runs[run].name, answers[index])),
      );
    }
    lanes(run, answer) {
      if (!answer.spans.length)
        return el("p", { class: "empty" }, foreign(`There is no timeline of step ${this.step} of ${run}.`));
      const begin = Math.min(0, ...answer.spans.map(([, , start2]) => start2));
      const end = Math.max(...answer.spans.map(([, , , stop]) => stop));
      const lanes = /* @__PURE__ */ new Map();
      for (const span of answer.spans) lanes.set(span[0], [...(lanes.get(span[0]) || []), span]);
      const names = [...lanes.keys()].sort(
        (a, b) => order(a) - order(b) || a.localeCompare(b, "en", { numeric: true }),
      );
      return el(
        "section",
        { class: "lanes", "aria-label": run },
        summary2(run, answer, end - begin),
        el("div", { class: "scale", "aria-hidden": "true" }, ticks(begin, end)),
        names.map((name) => lane(name, lanes.get(name), begin, end)),
      );
    }
  };
  function summary2(run, answer, seconds) {
    const source =
      answer.from === "timeline"
        ? ""
        : " This run has no timelines: the parts are shown one after another, from the step's metrics.";
    return el("p", { class: "hint" }, foreign(`${run}, step ${answer.step}: ${duration(seconds)}.${source}`));
  }
  function order(lane2) {
    return ["driver", "rewards", "rank", "engine"].findIndex((start2) => lane2.startsWith(start2));
  }
  function ticks(begin, end) {
    return [0, 0.25, 0.5, 0.75, 1].map((share) =>
      el("span", { style: { left: `${share * 100}%` } }, duration(begin + share * (end - begin))),
    );
  }
  function lane(name, spans, begin, end) {
    const busy = spans.reduce((sum, [, , start2, stop]) => sum + stop - start2, 0);
    const share = Math.min(1, busy / Math.max(end - begin, 1e-9));
    const bars = spans.map(([, what, start2, stop]) => {
      const text = `${what}: ${duration(stop - start2)}, from ${start2.toFixed(2)} s to ${stop.toFixed(2)} s`;
      const left = ((start2 - begin) / (end - begin)) * 100;
      const width = Math.max(0.15, ((stop - start2) / (end - begin)) * 100);
      return el(
        "div",
        {
          class: `bar ${partClass(what)}`,
          style: { left: `${left}%`, width: `${width}%` },
          title: text,
          tabindex: 0,
          role: "img",
          "aria-label": text,
        },
        el("span", {}, foreign(what)),
      );
    });
    return el(
      "section",
      { class: "lane", "aria-label": name },
      el("h2", {}, foreign(name), el("small", {}, ` ${Math.round(share * 100)} %`)),
      el("div", { class: "bars" }, bars),
    );
  }
  function partClass(what) {
    const part = [
      "rollout",
      "requests",
      "scoring",
      "train",
      "log_prob",
      "compute",
      "weight_sync",
      "evaluation",
      "checkpoint",
      "sleep",
    ].find((name) => what.startsWith(name));
    return `part-${part || "other"}`;
  }

  // src/main.js
  var TABS = [
    ["overview", "Overview"],
    ["samples", "Samples"],
    ["steps", "Steps"],
    ["spec", "Spec"],
  ];
  var SCREENS = {
    overview: Overview,
    samples: Samples,
    steps: Timeline,
    spec: Specs,
    sample: SamplePage,
    group: GroupPage,
  };
  var KEYS = [
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
  function go(state, name, parameters, isReplacing = false) {
    const hash = state.address(name, parameters);
    if (!isReplacing) {
      location.hash = hash;
      return;
    }
    history.replaceState(null, "", hash);
    state.mustOpen(hash);
  }
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
    const choices = state.runs.map((run, number2) => {
      const colour = palette[number2 % palette.length];
      const checked = state.selected.includes(number2);
      return el(
        "label",
        { class: "run-choice", style: { "--colour": colour } },
        el("input", { type: "checkbox", checked, onchange: (event) => select(state, number2, event.target) }),
        el("span", { class: "dot", "aria-hidden": "true" }),
        foreign(run.name),
      );
    });
    return el("fieldset", { class: "runs" }, el("legend", { class: "unseen" }, "Runs"), choices);
  }
  function select(state, number2, box) {
    const selected = state.toggled(number2);
    box.checked = selected.includes(number2);
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
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog"))
      return;
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
})();
