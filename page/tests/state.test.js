import assert from "node:assert/strict";
import { test } from "node:test";
import { PageState } from "../src/state.js";

function stateOf(names, { isFile = false } = {}) {
  const asked = [];
  const ask = async (name, parameters) => {
    asked.push([name, parameters]);
    return names.map((own) => ({ name: own }));
  };
  return { state: new PageState({ isFile, ask }), asked };
}

test("the runs are read for those that are selected", async () => {
  const { state, asked } = stateOf(["a", "b", "c"]);
  state.toggle(2);
  await state.readRuns();
  assert.deepEqual(asked, [["runs", { selected: "0,2" }]]);
  assert.deepEqual(
    state.runs.map(({ name }) => name),
    ["a", "b", "c"],
  );
});

test("a selection is in the order of the runs and never empty", () => {
  const { state } = stateOf([]);
  const rows = [
    [3, [0, 3]],
    [1, [0, 1, 3]],
    [0, [1, 3]],
    [3, [1]],
    [1, [1]],
  ];
  for (const [number, selected] of rows) {
    state.toggle(number);
    assert.deepEqual(state.selected, selected);
  }
});

test("as many runs as there are colours are selected at first", async () => {
  const { state } = stateOf([..."abcdefghij"]);
  await state.readRuns();
  state.selectFirstRuns();
  assert.deepEqual(state.selected, [0, 1, 2, 3, 4, 5, 6, 7]);
});

test("a screen is opened for a new address, a new selection, and on demand", () => {
  const { state } = stateOf(["a", "b"]);
  assert.equal(state.mustOpen("#overview"), true);
  assert.equal(state.mustOpen("#overview"), false);
  assert.equal(state.mustOpen("#samples"), true);
  state.toggle(1);
  assert.equal(state.mustOpen("#samples"), true);
  state.forgetOpened();
  assert.equal(state.mustOpen("#samples"), true);
  assert.equal(state.mustOpen("#samples"), false);
});

test("a server is asked again, less often by a hidden page, and a file never", () => {
  const { state } = stateOf([]);
  assert.equal(state.refreshDelay(true), 5 * state.refreshDelay(false));
  assert.equal(stateOf([], { isFile: true }).state.refreshDelay(false), null);
});
