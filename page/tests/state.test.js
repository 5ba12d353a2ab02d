import assert from "node:assert/strict";
import { test } from "node:test";
import { readAddress } from "../src/address.js";
import { PageState } from "../src/state.js";

function stateOf(names, { isFile = false } = {}) {
  const asked = [];
  const ask = async (name, parameters) => {
    asked.push([name, parameters]);
    return names.map((own) => ({ name: own }));
  };
  return { state: new PageState({ isFile, ask }), asked };
}

async function readState(names, options) {
  const { state } = stateOf(names, options);
  await state.readRuns();
  return state;
}

function followed(state, hash) {
  state.follow(readAddress(hash));
  return state;
}

test("the runs are read for those that are selected", async () => {
  const { state, asked } = stateOf(["a", "b", "c"]);
  await state.readRuns();
  followed(state, "#overview?runs=a,c");
  await state.readRuns();
  assert.deepEqual(asked, [
    ["runs", { selected: "0" }],
    ["runs", { selected: "0,2" }],
  ]);
});

test("a selection is in the order of the runs and never empty", async () => {
  const state = await readState([..."abcd"]);
  const rows = [
    [3, [0, 3]],
    [1, [0, 1, 3]],
    [0, [1, 3]],
    [3, [1]],
    [1, [1]],
  ];
  for (const [number, selected] of rows) {
    assert.deepEqual(state.toggled(number), selected);
    state.selected = state.toggled(number);
  }
});

test("an address selects runs by their names", async () => {
  const rows = [
    ["", [0]],
    ["#samples", [0]],
    ["#samples?runs=b", [1]],
    ["#samples?runs=c,a,a", [0, 2]],
    ["#samples?runs=gone", [0]],
    ["#samples?runs=gone,b", [1]],
    ["#overview?runs=all", [0, 1, 2, 3, 4, 5, 6, 7]],
  ];
  const state = await readState([..."abcdefghij"]);
  for (const [hash, selected] of rows) assert.deepEqual(followed(state, hash).selected, selected, hash);
  const file = await readState([..."ab"], { isFile: true });
  assert.deepEqual(followed(file, "").selected, [0, 1], "a file shows all of its runs at first");
});

test("runs of the same name are told apart by their numbers", async () => {
  const state = await readState(["a", "b", "a"]);
  followed(state, "#samples?runs=0,b");
  assert.deepEqual(state.selected, [0, 1]);
  assert.equal(state.address("samples"), "#samples?runs=0,b");
});

test("every address has the selection, and the overview's has its charts", async () => {
  const state = followed(
    await readState(["a", "b"]),
    "#overview?runs=a,b&filter=loss&smoothing=0.9&from=2&to=4",
  );
  assert.deepEqual(state.charts, { text: "loss", weight: 0.9, log: false, zoom: [2, 4] });
  const overview = "#overview?filter=loss&smoothing=0.9&from=2&to=4&runs=a,b";
  assert.equal(state.address("overview", { runs: "all", filter: "old" }), overview);
  assert.equal(state.address("samples", { kind: "eval", status: "" }), "#samples?kind=eval&runs=a,b");
  assert.equal(state.address("sample", { run: 1, step: 0 }), "#sample?step=0&run=b&runs=a,b");
  assert.deepEqual(followed(state, "#samples?runs=a").charts.text, "loss", "another screen keeps the charts");
  assert.deepEqual(followed(state, "#overview").charts, { text: "", weight: 0, log: false, zoom: null });
  assert.equal((await readState(["a"])).address("steps", { run: 0, step: 3 }), "#steps?step=3");
});

test("settings of charts that make no sense are not followed", async () => {
  const state = followed(await readState(["a"]), "#overview?smoothing=7&log=yes&from=2&to=x");
  assert.deepEqual(state.charts, { text: "", weight: 0, log: false, zoom: null });
});

test("a screen shows the run that its address names, or the first that is selected", async () => {
  const state = followed(await readState(["a", "b"]), "#sample?runs=b");
  assert.equal(state.runOf({}), 1);
  assert.equal(state.runOf({ run: "a" }), 0);
  assert.equal(state.runOf({ run: "gone" }), 1);
});

test("a screen is opened for a new address, a new selection, and on demand", () => {
  const { state } = stateOf(["a", "b"]);
  assert.equal(state.mustOpen("#overview"), true);
  assert.equal(state.mustOpen("#overview"), false);
  assert.equal(state.mustOpen("#samples"), true);
  state.selected = [0, 1];
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
