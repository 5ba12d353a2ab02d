import assert from "node:assert/strict";
import { test } from "node:test";
import { rowsOf } from "../src/specs.js";

const spec = {
  name: "a",
  trainer: { lr: 1e-5, steps: 6, seed: null },
  rewards: [{ type: "match", weight: 1 }],
};

test("keys that the author wrote are apart from those that were added", () => {
  const given = { name: "a", trainer: { lr: 1e-5 }, rewards: [{ type: "match" }] };
  assert.deepEqual(rowsOf({ spec, given }), {
    written: [
      ["name", "a"],
      ["trainer.lr", "1e-5"],
      ["rewards.0.type", "match"],
    ],
    resolved: [
      ["trainer.steps", "6"],
      ["rewards.0.weight", "1"],
    ],
  });
});

test("a run of an earlier version does not say what was written", () => {
  assert.deepEqual(rowsOf({ spec: { name: "a" } }), { written: null, resolved: [["name", "a"]] });
  assert.deepEqual(rowsOf({}), { written: null, resolved: [] });
});
