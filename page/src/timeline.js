// The timeline of one step: a lane for the driver, each rank, each engine and the rewards.
import { el, foreign, replace } from "./dom.js";
import { duration } from "./format.js";

export class Timeline {
  constructor(state, parameters, go) {
    this.state = state;
    this.run = state.runOf(parameters);
    this.go = go;
    const run = state.runs[this.run];
    this.isNewest = !parameters.step;
    this.step = Number(parameters.step || run.timelines[0] || run.step);
    this.body = el("div", { class: "lanes" });
    this.field = el("input", {
      type: "number",
      min: 0,
      max: run.step,
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
    const newest = this.state.runs[this.run].timelines[0];
    if (this.isNewest && newest && newest !== this.step) this.draw(newest);
  }

  close() {}

  show(step) {
    this.go("steps", { step: Math.max(0, step), run: this.run });
  }

  async draw(step = this.step) {
    this.step = step;
    this.field.value = step;
    const answer = await this.state.source.ask("timeline", { run: this.run, step });
    if (!answer.spans.length) {
      replace(this.body, el("p", { class: "empty" }, `There is no timeline of step ${step}.`));
      return;
    }
    const begin = Math.min(0, ...answer.spans.map(([, , start]) => start));
    const end = Math.max(...answer.spans.map(([, , , stop]) => stop));
    const lanes = new Map();
    for (const span of answer.spans) lanes.set(span[0], [...(lanes.get(span[0]) || []), span]);
    const names = [...lanes.keys()].sort(
      (a, b) => order(a) - order(b) || a.localeCompare(b, "en", { numeric: true }),
    );
    replace(
      this.body,
      this.summary(answer, end - begin),
      el("div", { class: "scale", "aria-hidden": "true" }, ticks(begin, end)),
      names.map((name) => lane(name, lanes.get(name), begin, end)),
    );
  }

  summary(answer, seconds) {
    const source =
      answer.from === "timeline"
        ? ""
        : " This run has no timelines: the parts are shown one after another, from the step's metrics.";
    return el(
      "p",
      { class: "hint" },
      `${this.state.runs[this.run].name}, step ${this.step}: ${duration(seconds)}.${source}`,
    );
  }
}

function order(lane) {
  return ["driver", "rewards", "rank", "engine"].findIndex((start) => lane.startsWith(start));
}

function ticks(begin, end) {
  return [0, 0.25, 0.5, 0.75, 1].map((share) =>
    el("span", { style: { left: `${share * 100}%` } }, duration(begin + share * (end - begin))),
  );
}

function lane(name, spans, begin, end) {
  const busy = spans.reduce((sum, [, , start, stop]) => sum + stop - start, 0);
  const share = Math.min(1, busy / Math.max(end - begin, 1e-9));
  const bars = spans.map(([, what, start, stop]) => {
    const text = `${what}: ${duration(stop - start)}, from ${start.toFixed(2)} s to ${stop.toFixed(2)} s`;
    const left = ((start - begin) / (end - begin)) * 100;
    const width = Math.max(0.15, ((stop - start) / (end - begin)) * 100);
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
