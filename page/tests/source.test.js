import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { gzipSync } from "node:zlib";
import { FileSource, openSource, ServerSource } from "../src/source.js";

afterEach(() => {
  for (const name of ["document", "location", "fetch"]) delete globalThis[name];
});

function sample(kind, step, line, changes = {}) {
  const base = { reward: 1, tokens: 3, status: "completed", dataset: "", row: "0", failed: 0 };
  return { ...base, kind, step, line, ...changes };
}

function fileOf(samples, changes = {}) {
  const records = Object.fromEntries(
    samples.map(({ kind, step, line }) => [
      `${kind}-${step}-${line}`,
      { response: `${kind} ${step} ${line}` },
    ]),
  );
  const run = {
    status: { name: "run" },
    samples,
    records,
    curves: {},
    timelines: {},
    images: {},
    problems: [],
  };
  const runs = [
    { ...run, spec: { a: 1 }, ...changes },
    { ...run, spec: { a: 2 } },
  ];
  return new FileSource({ runs, differences: { "0-1": [{ key: "a", before: 1, after: 2 }] } });
}

test("a page with data is a file, which needs no server", async () => {
  const data = { runs: [{ status: { name: "é" } }] };
  let isRemoved = false;
  const element = {
    textContent: gzipSync(JSON.stringify(data)).toString("base64"),
    remove: () => {
      isRemoved = true;
    },
  };
  globalThis.document = { getElementById: (id) => (id === "data" ? element : null) };
  const source = await openSource();
  assert.equal(source.isFile, true);
  assert.equal(isRemoved, true);
  assert.deepEqual(await source.ask("runs"), [{ name: "é" }]);
});

test("a page without data asks the server beside it, without empty parameters", async () => {
  globalThis.document = { getElementById: () => null };
  globalThis.location = { pathname: "/token/" };
  const asked = [];
  globalThis.fetch = async (address) => {
    asked.push(address);
    return { ok: true, json: async () => ["answer"] };
  };
  const source = await openSource();
  assert.equal(source.isFile, false);
  assert.deepEqual(await source.ask("samples", { run: 0, status: "", text: "a b" }), ["answer"]);
  assert.deepEqual(asked, ["/token/api/samples?run=0&text=a+b"]);
});

test("the server's problem and its end are errors that can be shown", async () => {
  globalThis.location = { pathname: "/token/" };
  globalThis.fetch = async () => ({ ok: false, json: async () => ({ problem: "there is no run 9" }) });
  await assert.rejects(new ServerSource().ask("sample"), { message: "there is no run 9" });
  globalThis.fetch = async () => {
    throw new TypeError("fetch failed");
  };
  await assert.rejects(new ServerSource().ask("sample"), { message: "rlrun view has ended: start it again" });
});

test("a file answers with the curve between two steps", async () => {
  const source = fileOf([], {
    curves: {
      loss: [
        [1, 2, 3],
        [9, 8, 7],
      ],
    },
  });
  const names = JSON.stringify(["loss", "absent"]);
  assert.deepEqual(await source.ask("curves", { run: 0, names, from: 1.5, to: 2.5 }), {
    loss: [[2], [8]],
    absent: [[], []],
  });
  assert.deepEqual((await source.ask("curves", { run: 0, names, from: "", to: "" })).loss[0], [1, 2, 3]);
});

test("a file tells prompts of different datasets apart", async () => {
  const samples = [sample("step", 2, 1), sample("step", 1, 1), sample("step", 1, 2, { dataset: "d" })];
  const source = fileOf(samples);
  const history = await source.ask("history", { run: 0, row: 0, dataset: "" });
  assert.deepEqual(
    history.samples.map(({ step, line }) => [step, line]),
    [
      [1, 1],
      [2, 1],
    ],
  );
  const group = await source.ask("group", { run: 0, kind: "step", step: "1", row: "0", dataset: "d" });
  assert.deepEqual(group, [{ response: "step 1 2" }]);
});

test("a file's list of samples names the choices of its filters", async () => {
  const samples = [
    sample("step", 1, 1, { status: "truncated" }),
    sample("step", 1, 2, { dataset: "d" }),
    sample("eval", 1, 1, { dataset: "e" }),
  ];
  const page = await fileOf(samples).ask("samples", { runs: "0", status: "truncated" });
  assert.deepEqual(page.names, { status: ["completed", "truncated"], dataset: ["d"] });
  assert.equal(page.count, 1);
  const both = await fileOf(samples).ask("samples", { runs: "0,1", order: "oldest" });
  assert.deepEqual(
    both.rows.map(({ run, step, line }) => [run, step, line]),
    [
      [0, 1, 1],
      [1, 1, 1],
      [0, 1, 2],
      [1, 1, 2],
    ],
  );
});

test("a file searches the newest step first, and says which sample it does not contain", async () => {
  const source = fileOf([sample("step", 1, 1), sample("step", 2, 1), sample("eval", 2, 1)]);
  const found = await source.ask("search", { run: 0, kind: "step", text: "STEP" });
  assert.deepEqual(
    found.rows.map(({ step }) => step),
    [2, 1],
  );
  assert.equal(found.next, null);
  const missing = source.ask("sample", { run: 0, kind: "step", step: 9, line: 9 });
  await assert.rejects(missing, { message: "this file does not contain the sample" });
});

test("a file compares the specs of its runs", async () => {
  assert.deepEqual(await fileOf([]).ask("specs", { runs: "0,1" }), {
    spec: { a: 1 },
    differences: [[{ key: "a", before: 1, after: 2 }]],
  });
});
