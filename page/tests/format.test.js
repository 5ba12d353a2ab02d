import assert from "node:assert/strict";
import { test } from "node:test";
import { ago, bytes, duration, kindName, metricValue, number, settingText } from "../src/format.js";

function check(format, rows) {
  for (const [value, text] of rows) assert.equal(format(value), text, `of ${value}`);
}

test("numbers have four digits, and very small or large ones an exponent", () =>
  check(number, [
    [null, "–"],
    [undefined, "–"],
    [NaN, "–"],
    [0, "0"],
    [1, "1"],
    [0.123456, "0.1235"],
    [-0.5, "-0.5"],
    [0.001, "0.001"],
    [0.00012, "1.20e-4"],
    [999.96, "1000"],
    [1234.6, "1,235"],
    [-9999999, "-9,999,999"],
    [1e7, "1.00e+7"],
    [Infinity, "Infinity"],
  ]));

test("durations change their unit with their size", () =>
  check(duration, [
    [null, "–"],
    [Infinity, "–"],
    [0, "0.00 s"],
    [0.126, "0.13 s"],
    [6, "6.0 s"],
    [10, "10 s"],
    [89, "89 s"],
    [90, "2 min"],
    [89 * 60, "89 min"],
    [90 * 60, "1 h 30 min"],
    [25 * 3600 + 61, "25 h 1 min"],
  ]));

test("bytes change their unit at 1024", () =>
  check(bytes, [
    [0, "0 B"],
    [1023, "1023 B"],
    [1024, "1 KiB"],
    [1536, "1.5 KiB"],
    [200 * 2 ** 20, "200 MiB"],
    [2.345 * 2 ** 30, "2.35 GiB"],
    [4096 * 2 ** 40, "4096 TiB"],
  ]));

test("a time ago is never in the future", () => {
  const now = Date.parse("2025-01-01T00:01:00Z");
  assert.equal(ago("2025-01-01T00:00:00Z", now), "60 s ago");
  assert.equal(ago("2025-01-01T00:02:00Z", now), "0.00 s ago");
});

test("a metric's name says its unit", () => {
  const rows = [
    ["perf/peak_memory/trainer", 2 ** 30, "1 GiB"],
    ["perf/weight_sync_bytes", 2048, "2 KiB"],
    ["perf/step_time", 1.5, "1.5 s"],
    ["train/loss", 1.5, "1.5"],
    ["perf/step_time", null, "–"],
  ];
  for (const [name, value, text] of rows) assert.equal(metricValue(name, value), text, name);
});

test("a kind without a name of its own is shown as it is", () => {
  assert.equal(kindName("dropped"), "Not trained on");
  assert.equal(kindName("other"), "other");
});

test("values of a spec", () => {
  const rows = [
    [5e-5, "5e-5"],
    [0.7, "0.7"],
    [1000000, "1000000"],
    [0, "0"],
    ["text", "text"],
    [true, "true"],
    [[1, "a"], '[1,"a"]'],
    [null, "not set"],
  ];
  for (const [value, text] of rows) assert.equal(settingText(value), text);
});
