// The timeline of one step of each selected run: a lane for the driver, each rank, each engine and the rewards.
import { el, foreign, replace } from "./dom.js";
import { duration } from "./format.js";

export class Timeline {
  constructor(state, parameters, go) {
    this.state = state;
    this.go = go;
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
    const runs = this.state.selected.map((number) => this.state.runs[number]);
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
    const begin = Math.min(0, ...answer.spans.map(([, , start]) => start));
    const end = Math.max(...answer.spans.map(([, , , stop]) => stop));
    const lanes = new Map();
    for (const span of answer.spans) lanes.set(span[0], [...(lanes.get(span[0]) || []), span]);
    const names = [...lanes.keys()].sort(
      (a, b) => order(a) - order(b) || a.localeCompare(b, "en", { numeric: true }),
    );
    return el(
      "section",
      { class: "lanes", "aria-label": run },
      summary(run, answer, end - begin),
      el("div", { class: "scale", "aria-hidden": "true" }, ticks(begin, end)),
      names.map((name) => lane(name, lanes.get(name), begin, end)),
    );
  }
}

function summary(run, answer, seconds) {
  const source =
    answer.from === "timeline"
      ? ""
      : " This run has no timelines: the parts are shown one after another, from the step's metrics.";
  return el("p", { class: "hint" }, foreign(`${run}, step ${answer.step}: ${duration(seconds)}.${source}`));
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
