import assert from "node:assert/strict";
import { test } from "node:test";
import { excerptOf, matches, queryGroups, querySamples } from "../src/local_samples.js";

function row(step, line, changes = {}) {
  const base = { kind: "step", reward: 1, tokens: 10, status: "completed", dataset: "", row: "0", failed: 0 };
  return { ...base, step, line, ...changes };
}

test("a filter keeps what it names", () => {
  const sample = row(3, 1, { reward: 0.5, tokens: 20, status: "truncated", dataset: "d", row: "7" });
  const rows = [
    [{}, true],
    [{ kind: "eval" }, false],
    [{ from_step: "3", to_step: "3" }, true],
    [{ from_step: "4" }, false],
    [{ to_step: "2" }, false],
    [{ min_reward: "0.5", max_reward: "0.5" }, true],
    [{ min_reward: "0.6" }, false],
    [{ max_reward: "0.4" }, false],
    [{ min_tokens: "21" }, false],
    [{ max_tokens: "20" }, true],
    [{ status: "truncated", dataset: "d", row: "7" }, true],
    [{ status: "completed" }, false],
    [{ dataset: "e" }, false],
    [{ row: "8" }, false],
    [{ failed: "1" }, false],
    [{ from_step: "", status: "", failed: "" }, true],
  ];
  for (const [filters, isKept] of rows)
    assert.equal(matches(sample, filters), isKept, JSON.stringify(filters));
});

test("a sample without a reward is in no range of rewards and in no order by reward", () => {
  const sample = row(1, 1, { reward: null });
  assert.equal(matches(sample, {}), true);
  for (const filters of [{ min_reward: "-5" }, { max_reward: "5" }, { order: "best" }, { order: "worst" }]) {
    assert.equal(matches(sample, filters), false, JSON.stringify(filters));
  }
});

test("each order, and its ties", () => {
  const rows = [
    row(1, 1, { reward: 1, tokens: 5 }),
    row(1, 2, { reward: 0, tokens: 9 }),
    row(2, 1, { reward: 1, tokens: 7 }),
    row(2, 2, { reward: 0, tokens: 9 }),
  ];
  const orders = [
    ["newest", "2.1 2.2 1.1 1.2"],
    ["oldest", "1.1 1.2 2.1 2.2"],
    ["best", "2.1 1.1 2.2 1.2"],
    ["worst", "2.2 1.2 2.1 1.1"],
    ["longest", "2.2 1.2 2.1 1.1"],
    ["shortest", "1.1 2.1 2.2 1.2"],
    ["unknown", "2.1 2.2 1.1 1.2"],
  ];
  for (const [order, expected] of orders) {
    const answer = querySamples(rows, { order });
    assert.equal(answer.rows.map(({ step, line }) => `${step}.${line}`).join(" "), expected, order);
  }
});

test("a page of samples counts all of them", () => {
  const rows = Array.from({ length: 5 }, (_, index) => row(1, index + 1));
  const answer = querySamples(rows, { offset: "4" }, 2);
  assert.deepEqual(
    answer.rows.map(({ line }) => line),
    [5],
  );
  assert.equal(answer.count, 5);
});

test("groups are ordered by the spread of their rewards", () => {
  const rows = [
    row(1, 1, { row: "a", reward: 0, prompt: "question a" }),
    row(1, 2, { row: "a", reward: 1, prompt: "question a" }),
    row(1, 3, { row: "b", reward: 0 }),
    row(1, 4, { row: "b", reward: 4 }),
    row(1, 5, { row: "c", reward: 9 }),
    row(1, 6, { row: "d", reward: 2 }),
    row(1, 7, { row: "d", reward: null }),
  ];
  assert.equal(queryGroups(rows, {}).rows[1].prompt, "question a");
  assert.deepEqual(
    queryGroups(rows, {}).rows.map(({ row: name, samples, mean, spread }) => [name, samples, mean, spread]),
    [
      ["b", 2, 2, 2],
      ["a", 2, 0.5, 0.5],
    ],
  );
});

test("the spread of huge rewards is finite", () => {
  const [group] = queryGroups([row(1, 1, { reward: 1e308 }), row(1, 2, { reward: -1e308 })], {}).rows;
  assert.deepEqual([group.mean, group.spread], [0, 1e308]);
});

test("a search finds text in any part of a sample, whatever its case", () => {
  const record = {
    prompt: [{ role: "user", content: "What is Six?" }],
    response: `${"x".repeat(100)}NEEDLE`,
  };
  assert.equal(excerptOf(record, "needle"), `${"x".repeat(60)}NEEDLE`);
  assert.match(excerptOf(record, "is six"), /What is Six\?/);
  assert.equal(excerptOf(record, "absent"), null);
});
