// Tests of how the page keeps up with the server: a stream, a server and a clock that the test holds.
import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";
import { runnerImport } from "vite";

const { Store } = (await runnerImport(new URL("../src/store.ts", import.meta.url).pathname, { logLevel: "silent" })).module;

let stop; // ends the store of the test
let streams; // every connection that the page began, the newest last
let status; // what GET /v1/status answers with
const json = (code, body) => async () => new Response(JSON.stringify(body), { status: code });

globalThis.document = { visibilityState: "visible", addEventListener() {}, removeEventListener() {} };
globalThis.EventSource = class {
  listeners = {};
  closed = false;
  constructor() {
    streams.push(this);
  }
  addEventListener(name, f) {
    this.listeners[name] = f;
  }
  close() {
    this.closed = true;
  }
  say(name, data) {
    this.listeners[name]({ data: JSON.stringify(data) });
  }
};
globalThis.fetch = (path) => (path === "/v1/status" ? status() : json(200, { items: [] })());

beforeEach(() => {
  streams = [];
  status = json(200, {});
  mock.timers.enable({ apis: ["setTimeout", "setInterval", "Date"], now: Date.parse("2026-01-01T00:00:00Z") });
});
afterEach(() => {
  stop();
  mock.timers.reset();
});
const begin = () => {
  const store = new Store();
  stop = store.run();
  return store;
};
/** Lets the clock go on second by second, and what was asked for be answered in between. */
const pass = async (seconds) => {
  for (let s = 0; s < seconds; s++) {
    mock.timers.tick(1000);
    for (let i = 0; i < 5; i++) await new Promise(setImmediate);
  }
};
const newest = () => streams[streams.length - 1];
const row = (run, started, more = {}) => ({ name: "m", workflow: { run, machine: "m", state: "SUCCESS", started, actions: [], ...more } });

test("a stream that fell silent is opened again once, and greys until the machines have come", async () => {
  const store = begin();
  newest().say("machines", { items: [{ name: "m" }] });
  const before = store.now();
  assert.equal(store.link, "live");
  await pass(27);
  assert.equal(streams.length, 2);
  assert.equal(store.link, "lost");
  assert.equal(store.now(), before); // what is shown was true then
  // The machines are on their way for half a minute: nothing may begin them from the start.
  await pass(30);
  assert.equal(streams.length, 2);
  assert.equal(newest().closed, false);
  newest().say("machines", { items: [{ name: "m" }] });
  assert.equal(store.link, "live");
});

test("a connection that never brings the machines is given up", async () => {
  begin();
  await pass(110);
  assert.equal(streams.length, 1);
  await pass(20);
  assert.equal(streams.length, 2);
});

test("a status that is not answered does not break off the stream that has come back", async () => {
  const store = begin();
  newest().say("machines", { items: [] });
  let fail;
  status = () => new Promise((_, reject) => (fail = reject));
  newest().onerror();
  await pass(1);
  assert.equal(streams.length, 2);
  newest().say("machines", { items: [] });
  fail(new Error("timed out"));
  await pass(3);
  assert.equal(store.link, "live");
  assert.equal(streams.length, 2);
});

test("statuses that are not answered open a silent stream again once", async () => {
  begin();
  newest().say("machines", { items: [] });
  const failures = [];
  status = () => new Promise((_, reject) => failures.push(reject));
  await pass(37); // looked at three times
  failures.forEach((fail) => fail(new Error("timed out")));
  await pass(10);
  assert.equal(streams.length, 2);
});

test("the row that the server sends last is shown, whatever its run", async () => {
  const store = begin();
  const shown = () => store.machines.get("m").workflow?.run;
  newest().say("machines", { items: [row("late", "2026-01-02T00:00:00Z", { updated: "2026-01-02T00:05:00Z" })] });
  newest().say("machine", row("early", "2026-01-01T00:00:00Z")); // the record of the later run was deleted
  assert.equal(shown(), "early");
  newest().say("machine", row("early", "2026-01-01T00:00:00Z", { state: "FAILED", updated: "2025-12-31T00:00:00Z" })); // the server's clock was set back
  assert.equal(store.tones.get("m"), "failed");
  newest().say("machine", { name: "m" });
  assert.equal(shown(), undefined);
});

test("an operation is what the server sent last, and those of the stream before are gone", async () => {
  const store = begin();
  newest().say("operation", { run: "r", seq: 5, state: "RUNNING" });
  newest().say("operation", { run: "r", seq: 1, state: "FAILED" });
  assert.equal(store.operations.get("r").state, "FAILED");
  newest().say("machines", { items: [] });
  assert.equal(store.operations.size, 0);
});

test("a session that may only read does nothing", () => {
  const store = begin();
  newest().say("caller", { name: "alice", role: "operate" });
  newest().say("machines", { items: [{ name: "m" }] });
  assert.equal(store.idle, false);
  newest().say("caller", { name: "bob", role: "read" });
  assert.equal(store.idle, true);
  assert.equal(store.caller.name, "bob");
});

test("after an upgrade of the server the page asks for a reload, after a restart it does not", async () => {
  const store = begin();
  newest().say("machines", { items: [] });
  newest().say("status", { version: "v1" });
  newest().onerror();
  await pass(1);
  newest().say("machines", { items: [] });
  newest().say("status", { version: "v1" });
  assert.equal(store.outdated, false);
  newest().onerror();
  await pass(1);
  newest().say("machines", { items: [] });
  newest().say("status", { version: "v2" });
  assert.equal(store.outdated, true);
});
