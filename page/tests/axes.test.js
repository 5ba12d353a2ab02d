import assert from "node:assert/strict";
import { test } from "node:test";
import { constantRange, STEP_INCREMENTS, stepRange, tickText } from "../src/axes.js";

test("values that are all the same have an axis from zero", () => {
  const rows = [
    [0, false, [0, 1]],
    [3, false, [0, 6]],
    [1e-5, false, [0, 2e-5]],
    [-2, false, [-4, 0]],
    [100, true, [10, 1000]],
  ];
  for (const [value, log, range] of rows) assert.deepEqual(constantRange(value, log), range);
});

test("a run of one step has that step in the middle, and ticks are whole steps", () => {
  assert.deepEqual(stepRange(4, 4), [3.5, 4.5]);
  assert.deepEqual(stepRange(1, 9), [1, 9]);
  assert.deepEqual(STEP_INCREMENTS.slice(0, 5), [1, 2, 5, 10, 20]);
});

test("ticks have the digits that tell them apart", () => {
  const rows = [
    [[0, 0.25, 0.5], 0.25, ["0", "0.25", "0.50"]],
    [[0.9998, 0.9999, 1], 0.0001, ["0.9998", "0.9999", "1.0000"]],
    [[0.99998, 1], 0.00002, ["0.99998", "1.00000"]],
    [[54, 56], 2, ["54", "56"]],
    [[5e-6, 1e-5], 5e-6, ["5e-6", "1e-5"]],
    [[1e-8, 1.25e-8], 2.5e-9, ["1e-8", "1.25e-8"]],
    [[-0.0002, 0.0002], 0.0002, ["-0.0002", "0.0002"]],
    [[10000, 12500], 2500, ["10.0k", "12.5k"]],
    [[100000, 150000], 50000, ["100k", "150k"]],
  ];
  for (const [ticks, increment, texts] of rows)
    assert.deepEqual(
      ticks.map((tick) => tickText("loss", tick, increment)),
      texts,
    );
  assert.equal(tickText("perf/peak_memory/engine", 2 ** 30, 2 ** 29), "1 G");
});
