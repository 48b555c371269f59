// Tests of what the page computes, with node's own runner: npm test.
import assert from "node:assert/strict";
import { test } from "node:test";
import { runnerImport } from "vite";

const load = async (name) => (await runnerImport(new URL(`../src/${name}`, import.meta.url).pathname, { logLevel: "silent" })).module;
const { clean, bytes, span, at } = await load("text.ts");
const { parse } = await load("api.ts");
const { Meter } = await load("progress.ts");
const { stepsOf, tone, doing, current, tells } = await load("phases.ts");
const { newer } = await load("store.ts");
const { selectorOf } = await load("decision.tsx");

test("machine-supplied text loses its control characters", () => {
  for (const [given, want] of [
    ["\x1b[31mred\x1b[0m", "red"],
    ["\x1b]0;title\x07text", "text"],
    ["\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"],
    ["a\x00b\x08c\x7fd\x9be", "abcde"],
    ["exe.\u202egpj", "exe.gpj"],
    ["zero\u200bwidth\ufeff", "zerowidth"],
    ["line\r\nnext\ttab\rback", "line\nnext\ttabback"],
    ["\x1b", ""],
    ["<b>Grüße 漢字</b>", "<b>Grüße 漢字</b>"],
  ]) assert.equal(clean(given), want);
  assert.deepEqual(parse('{"a":["\\u001b[1mx"],"n":1,"z":null}'), { a: ["x"], n: 1, z: null });
});

test("quantities", () => {
  assert.deepEqual([0, 999, 1000, 4294967296, 99_950_000, 1e12].map(bytes), ["0 B", "999 B", "1.0 kB", "4.3 GB", "100 MB", "1.0 TB"]);
  assert.deepEqual([0.4, 59, 60, 80, 3599, 3600, 7500, 200_000].map(span), ["0 s", "59 s", "1 min", "1 min 20 s", "59 min", "1 h", "2 h 5 min", "2 d"]);
  assert.equal(at("0001-01-01T00:00:00Z"), 0);
  assert.equal(at(undefined), 0);
});

test("pace is what was seen lately", () => {
  const m = new Meter();
  assert.equal(m.pace("k", 100, 0).rate, 0);
  for (let s = 0; s <= 60; s++) m.note("k", s < 30 ? s * 100 : 3000 + (s - 30) * 10, s * 1000);
  const p = m.pace("k", 3400, 65_000);
  assert.equal(p.rate, 10);
  assert.equal(p.left, 10);
  assert.equal(p.still, 5);
  m.note("k", 5, 66_000); // began anew
  assert.equal(m.pace("k", 3400, 66_000).rate, 0);
});

const run = (phase, state, more = {}) => ({ run: "r", machine: "m", type: "Provision", phase, state, actions: [], ...more });
const view = (workflow) => ({ name: "m", bmc: { driver: "ipmi" }, workflow });
const shape = (w, events = []) => stepsOf(w, tone(view(w)), events, 0).map((s) => ({ done: "d", now: "n", waiting: "w", failed: "f", todo: "." })[s.state]).join("");

test("steps tell where a run stands, waits or ended", () => {
  assert.equal(shape(run("plan", "PREPARING")), "n..........");
  assert.equal(shape(run("agent", "PENDING")), "dddddn.....");
  assert.equal(shape(run("done", "SUCCESS")), "ddddddddddd");
  assert.equal(shape(run("waiting-for-person", "RUNNING", { question: { id: "3.bind.1", text: "" } })), "ddddddw....");
  assert.equal(shape(run("waiting-for-person", "RUNNING", { question: { id: "3.0.1", text: "" }, actions: [{ name: "a", state: "FAILED" }] })), "dddddddw...");
  assert.equal(shape(run("failed", "FAILED", { actions: [{ name: "a", state: "FAILED" }] })), "dddddddf...");
  // What the wire saw tells where a run without a started action ended; the
  // disarm at its end does not.
  assert.equal(shape(run("failed", "FAILED"), [{ seq: 1, kind: "dhcp", at: "" }, { seq: 2, kind: "disarmed", at: "" }]), "dddf.......");
  assert.equal(shape(run("cancelled", "CANCELLED"), [{ seq: 1, kind: "phase", key: "loader", at: "" }]), "ddddf......");
  assert.equal(shape(run("agent", "PENDING", { type: "Inspect" })), "dddddn.");
  assert.equal(shape(run("power", "RUNNING", { type: "BMCJob" })), "");
});

test("a machine's state in words", () => {
  assert.equal(doing(view(null), 0), "Not provisioned yet");
  assert.equal(doing(view(run("action", "RUNNING", { actions: [{ name: "a", state: "SUCCESS" }, { name: "write", state: "RUNNING" }] })), 0), "Action 2 of 2: write");
  // The agent's word arrives before the record's.
  assert.equal(doing(view(run("action", "RUNNING", { actions: [{ name: "a", state: "SUCCESS" }, { name: "write", state: "PENDING", done: 5 }, { name: "c", state: "PENDING" }] })), 0), "Action 2 of 3: write");
  assert.equal(doing({ name: "m", workflow: run("power", "PENDING") }, 0), "Power it on now");
  assert.equal(tone({ name: "m", workflow: run("power", "PENDING") }), "waiting");
  assert.equal(tone(view(run("power", "PENDING"))), "working");
  assert.equal(tone(view(run("failed", "TIMEOUT"))), "failed");
  assert.equal(current(run("failed", "FAILED", { actions: [{ state: "SUCCESS" }, { state: "FAILED" }, { state: "PENDING" }] })), 1);
  assert.equal(tells({ kind: "dhcp", count: 3 }), "asked for an address (PXE) (3 times)");
});

test("an older record never replaces a newer one", () => {
  const old = run("action", "RUNNING", { started: "2026-01-01T00:00:00Z", updated: "2026-01-01T00:01:00.5Z" });
  assert.equal(newer(old, { ...old, updated: "2026-01-01T00:01:00.25Z" }), old);
  const next = { ...old, run: "s", started: "2026-01-02T00:00:00Z" };
  assert.equal(newer(old, next), next);
  assert.equal(newer(next, old), next);
  // A progress event that holds its actions alone keeps the rest.
  const actions = [{ name: "a", state: "RUNNING", done: 5 }];
  assert.deepEqual(newer(old, { run: "r", machine: "m", actions }), { ...old, actions });
});

test("a selector picks one disk alone, or there is none", () => {
  const a = { path: "/dev/sda", size: 1, serial: "X", wwn: "1", model: "M" };
  const b = { path: "/dev/sdb", size: 1, serial: "X", wwn: "2", model: "N" };
  const c = { path: "/dev/sdc", size: 1, serial: "Y" };
  const d = { path: "/dev/sdd", size: 1 };
  assert.deepEqual(selectorOf(c, [a, b, c, d]), { serial: "Y" });
  assert.deepEqual(selectorOf(a, [a, b, c, d]), { wwn: "1" });
  assert.deepEqual(selectorOf({ ...a, wwn: "" }, [{ ...a, wwn: "" }, b]), { serial: "X", model: "M" });
  assert.equal(selectorOf(d, [a, b, c, d]), undefined);
});
