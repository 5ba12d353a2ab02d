import assert from "node:assert/strict";
import { test } from "node:test";
import { availableModes, shade } from "../src/tokens.js";

test("a colouring is offered where its values were saved", () => {
  assert.deepEqual(availableModes({ log_probs: [0], loss_mask: [1] }), ["log_probs", "mask"]);
  assert.deepEqual(
    availableModes({ log_probs: [0], trainer_log_probs: [0], advantages: [1], loss_mask: [1] }),
    ["log_probs", "gap", "advantages", "mask"],
  );
  assert.deepEqual(availableModes({}), []);
});

test("the colour of a value", () => {
  const rows = [
    ["log_probs", null, 1, null],
    ["log_probs", undefined, 1, null],
    ["log_probs", -3, 3, { kind: "low", share: 0.5 }],
    ["log_probs", -60, 60, { kind: "low", share: 1 }],
    ["mask", 1, 1, { kind: "high", share: 0.6 }],
    ["mask", 0, 1, { kind: "high", share: 0 }],
    ["advantages", -1, 4, { kind: "low", share: 0.25 }],
    ["gap", 4, 4, { kind: "high", share: 1 }],
    ["gap", 0, 0, { kind: "high", share: 0 }],
  ];
  for (const [mode, value, most, colour] of rows)
    assert.deepEqual(shade(mode, value, most), colour, `${mode} ${value}`);
});
