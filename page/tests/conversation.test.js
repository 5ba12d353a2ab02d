import assert from "node:assert/strict";
import { test } from "node:test";
import { promptTurns, responseTurns } from "../src/conversation.js";

test("a prompt is a text, messages, or a list of anything", () => {
  const message = { role: "system", content: "Be short.", name: "x" };
  assert.deepEqual(promptTurns("2+2?"), [{ role: "user", content: "2+2?" }]);
  assert.deepEqual(promptTurns([message, "text", null]), [
    message,
    { role: "?", content: "text" },
    { role: "?", content: null },
  ]);
});

const values = {
  pieces: ["a", "b", " tool", "c"],
  ids: [1, 2, 3, 4],
  num_tokens: 4,
  loss_mask: [1, 1, 0, 1],
  log_probs: [-1, -2, 0, -3],
};

test("given tokens are the environment's turn", () => {
  assert.deepEqual(responseTurns("ab toolc", values), [
    { role: "assistant", content: "ab" },
    { role: "environment", content: " tool" },
    { role: "assistant", content: "c" },
  ]);
});

test("a generated token that is not trained on is the assistant's", () => {
  const masked = { ...values, log_probs: [-1, -2, -0.5, -3] };
  assert.deepEqual(responseTurns("ab toolc", masked), [{ role: "assistant", content: "ab toolc" }]);
});

test("a response without all of its tokens is one turn", () => {
  const whole = [{ role: "assistant", content: "text" }];
  const rows = [
    undefined,
    null,
    { ...values, loss_mask: null },
    { ...values, pieces: ["a", null, " tool", "c"] },
    { ...values, num_tokens: 5 },
  ];
  for (const row of rows) assert.deepEqual(responseTurns("text", row), whole);
});
