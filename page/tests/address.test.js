import assert from "node:assert/strict";
import { test } from "node:test";
import { addressOf, given, readAddress } from "../src/address.js";

test("an address is read as it was written", () => {
  const parameters = { kind: "step", row: "a&b=c #1 é?", dataset: "" };
  assert.deepEqual(readAddress(addressOf("group", parameters)), { name: "group", parameters });
});

test("an address keeps commas and needs no question mark", () => {
  assert.equal(addressOf("samples", { runs: "a,b" }), "#samples?runs=a,b");
  assert.equal(addressOf("samples", {}), "#samples");
});

test("an address without parameters or without a name", () => {
  assert.deepEqual(readAddress("#samples"), { name: "samples", parameters: {} });
  assert.deepEqual(readAddress(""), { name: "", parameters: {} });
});

test("parameters without a value are left out, and 0 is a value", () => {
  assert.deepEqual(given({ a: "", b: undefined, c: 0, d: "x", e: null }), { c: 0, d: "x", e: null });
});
