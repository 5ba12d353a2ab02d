// One chart of one metric for several runs. Charts share their zoom and their cursor.
import { constantRange, STEP_INCREMENTS, stepRange, tickText } from "./axes.js";
import { joinSteps, positive, smooth } from "./curves.js";
import { el, replace } from "./dom.js";
import { metricValue, number } from "./format.js";

const HEIGHT = 185;
const SYNC_KEY = "steps"; // charts with the same key share their cursor

export function colours() {
  const style = getComputedStyle(document.documentElement);
  return [1, 2, 3, 4, 5, 6, 7, 8].map((index) => style.getPropertyValue(`--run-${index}`).trim());
}

export class Chart {
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
      .filter(([, value]) => value !== undefined);
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
          values: (_, ticks, index, space, increment) => this.ticks(ticks, log || increment),
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
  ticks(ticks, increment) {
    return ticks.map((tick) =>
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
}

// The range of an axis for values between two ends. A zoom may leave no values, and a log scale none above 0.
function valueRange(low, high, log) {
  if (low === null) return log ? [1, 10] : [0, 1];
  if (low === high) return constantRange(low, log);
  return log ? uPlot.rangeLog(low, high, 10, false) : uPlot.rangeNum(low, high, 0.1, true);
}
