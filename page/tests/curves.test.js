import assert from "node:assert/strict";
import { test } from "node:test";
import { drawnOnce, groupMetrics, joinSteps, positive, smooth } from "../src/curves.js";

test("smoothing has no bias at its start", () => {
  assert.deepEqual(smooth([4, 4, 4], 0.9).map(Math.round), [4, 4, 4]);
  const [first, second] = smooth([1, 0], 0.5);
  assert.equal(first, 1);
  assert.ok(Math.abs(second - 1 / 3) < 1e-12);
  assert.deepEqual(smooth([1, 7], 0), [1, 7]);
});

test("curves with different steps share one column of steps", () => {
  const table = joinSteps([
    [
      [1, 3],
      [10, 30],
    ],
    [
      [2, 3],
      [0.2, 0.3],
    ],
  ]);
  assert.deepEqual(table, [
    [1, 2, 3],
    [10, null, 30],
    [null, 0.2, 0.3],
  ]);
  assert.deepEqual(joinSteps([]), [[]]);
});

test("a log scale has no values of 0 or below", () => {
  assert.deepEqual(positive([1, 0, -1, 2]), [1, null, null, 2]);
});

test("metrics are grouped, the most important of a group first", () => {
  const names = [
    "train/entropy",
    "mine",
    "rollout/rewards/a",
    "train/loss",
    "eval/x/reward",
    "rollout/reward/mean",
  ];
  assert.deepEqual(groupMetrics(names), [
    ["Rewards", ["rollout/reward/mean", "eval/x/reward", "rollout/rewards/a"]],
    ["Learning", ["train/loss", "train/entropy"]],
    ["Other", ["mine"]],
  ]);
});

test("metrics that are the same number in every run are drawn once", () => {
  const names = ["rollout/pass@1", "rollout/reward/mean", "train/loss", "train/pg_loss"];
  const first = { names, same: [names.slice(0, 2), names.slice(2)] };
  const rows = [
    [
      [first],
      [
        ["rollout/reward/mean", ["rollout/pass@1"]],
        ["train/loss", ["train/pg_loss"]],
      ],
    ],
    [
      [first, { names, same: [names.slice(2)] }],
      [
        ["rollout/pass@1", []],
        ["rollout/reward/mean", []],
        ["train/loss", ["train/pg_loss"]],
      ],
    ],
    [
      [first, { names: ["train/loss"], same: [] }],
      [
        ["rollout/reward/mean", ["rollout/pass@1"]],
        ["train/loss", []],
        ["train/pg_loss", []],
      ],
    ],
  ];
  for (const [runs, drawn] of rows) assert.deepEqual([...drawnOnce(runs)], drawn);
});
