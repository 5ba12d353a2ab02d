// Pure functions for the axes of a chart: which part of an axis is shown, and the texts of its ticks.
import { metricValue } from "./format.js";

// Charts have ticks at whole steps only.
export const STEP_INCREMENTS = [0, 1, 2, 3, 4, 5, 6, 7, 8].flatMap((power) =>
  [1, 2, 5].map((digit) => digit * 10 ** power),
);

// The steps that are shown: a single one is in the middle.
export function stepRange(first, last) {
  return first === last ? [first - 0.5, first + 0.5] : [first, last];
}

// The range for values that are all the same, which have no spread to show: from zero, with the value in the middle.
export function constantRange(value, log) {
  if (log) return [value / 10, value * 10];
  if (value === 0) return [0, 1];
  return value > 0 ? [0, 2 * value] : [2 * value, 0];
}

// The text of a tick, with as many digits as tell it from the next one, which is `increment` away.
export function tickText(name, tick, increment) {
  if (tick === 0) return "0";
  if (/peak_memory|_bytes$/.test(name)) return metricValue(name, tick).replace("iB", "");
  const size = Math.abs(tick);
  if (size >= 10000) return `${fixed(tick / 1000, increment / 1000)}k`;
  if (size < 0.01 && digitsOf(increment) > 4) return Number(tick.toPrecision(6)).toExponential();
  return fixed(tick, increment);
}

function fixed(tick, increment) {
  return tick.toFixed(digitsOf(increment));
}

// Digits after the point of a number such as 0.25 or 5.
function digitsOf(value) {
  for (let digits = 0; digits < 12; digits += 1) {
    const scaled = value * 10 ** digits;
    if (scaled > 0.5 && Math.abs(scaled - Math.round(scaled)) < 1e-6 * scaled) return digits;
  }
  return 12;
}
