import assert from "node:assert/strict";
import { test } from "node:test";
import { summaryOf, sweptKeys } from "../src/sweep.js";

const trials = [
  { status: "done", values: { "trainer.lr": 1e-5 } },
  { status: "waiting", values: { "trainer.lr": 1e-6, "rollout.temperature": 1 } },
];

test("the table of a sweep has a column for every key that a trial sets", () => {
  assert.deepEqual(sweptKeys(trials), ["trainer.lr", "rollout.temperature"]);
});

test("a sweep says what it compares, and which values are better", () => {
  assert.equal(
    summaryOf({ metric: "eval/a/reward", goal: "max", trials }),
    "1 of 2 trials are done · compared by the last eval/a/reward: higher is better",
  );
  assert.match(summaryOf({ metric: "train/loss", goal: "min", trials }), /lower is better$/);
});
