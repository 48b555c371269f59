// Tests of what the page computes, with node's own runner: npm test.
import assert from "node:assert/strict";
import { test } from "node:test";
import { runnerImport } from "vite";

const load = async (name) => (await runnerImport(new URL(`../src/${name}`, import.meta.url).pathname, { logLevel: "silent" })).module;
const { clean, bytes, roughly, span, at } = await load("text.ts");
const { parse } = await load("api.ts");
const { Meter } = await load("progress.ts");
const { stepsOf, tone, doing, current, eventText, imageOf, isWeak } = await load("phases.ts");
const { standing, stepTone, acting, took, late, saying, stateOf, progress } = await load("steps.ts");
const { selectorOf } = await load("decision.tsx");
const { arrange, matches, topsOf, visible } = await load("list.ts");
const { perAction, perDay, perPhase } = await load("charts.tsx");
const { find } = await load("search.tsx");
const { atStake } = await load("install.tsx");

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
  // Whatever way JSON has to write a character, it is found.
  for (let c = 0; c <= 0xffff; c++) {
    const text = String.fromCharCode(c);
    if (clean(text) === text || c === 0x0d) continue;
    for (const json of [JSON.stringify(text), `"\\u${c.toString(16).padStart(4, "0")}"`, `"\\u${c.toString(16).padStart(4, "0").toUpperCase()}"`]) assert.equal(parse(json), clean(text), json);
  }
  assert.deepEqual(parse('["a\\rb", "\\b", "\\f", "C:\\\\bin", "\\u003cb\\u003e\\n"]'), ["ab", "", "", "C:\\bin", "<b>\n"]);
});

test("quantities", () => {
  assert.deepEqual([0, 1023, 1024, 4294967296, 99_950_000, 1e12].map(bytes), ["0 B", "1023 B", "1.0 KiB", "4.0 GiB", "95.3 MiB", "931.3 GiB"]);
  assert.deepEqual([0.4, 59, 60, 80, 3599, 3600, 7500, 200_000].map(span), ["0 s", "59 s", "1 min", "1 min 20 s", "59 min", "1 h", "2 h 5 min", "2 d"]);
  assert.deepEqual([8, 80, 7500].map(roughly), ["8 s", "1 min", "2 h"]);
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
  m.note("k", 5, 66_000); // started again
  assert.equal(m.pace("k", 3400, 66_000).rate, 0);
});

const run = (phase, state, more = {}) => ({ run: "r", machine: "m", type: "Provision", phase, state, actions: [], ...more });
const view = (workflow) => ({ name: "m", bmc: { driver: "ipmi" }, workflow });
const shape = (w, events = []) => stepsOf(w, tone(view(w)), events, 0).map((s) => ({ done: "d", now: "n", waiting: "w", failed: "f", todo: "." })[s.state]).join("");

test("steps show where a run is, waits or ended", () => {
  assert.equal(shape(run("plan", "PREPARING")), "n..........");
  assert.equal(shape(run("agent", "PENDING")), "dddddn.....");
  assert.equal(shape(run("done", "SUCCESS")), "ddddddddddd");
  assert.equal(shape(run("waiting-for-operator", "RUNNING", { question: { id: "3.bind.1", text: "" } })), "ddddddw....");
  assert.equal(shape(run("waiting-for-operator", "RUNNING", { question: { id: "3.0.1", text: "" }, actions: [{ name: "a", state: "FAILED" }] })), "dddddddw...");
  assert.equal(shape(run("failed", "FAILED", { actions: [{ name: "a", state: "FAILED" }] })), "dddddddf...");
  // What the wire saw shows where a run without a started action ended; the
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
  assert.equal(eventText({ kind: "dhcp", count: 3 }), "asked for an address (PXE) (3 times)");
});

test("a run that succeeded claims what it has grounds for", () => {
  assert.equal(doing(view(run("done", "SUCCESS", { evidence: "phone-home" })), 0), "Installed and ready");
  assert.equal(doing(view(run("done", "SUCCESS", { evidence: "weak" })), 0), "Installed (evidence: weak)");
  assert.equal(doing(view(run("done", "SUCCESS", { evidence: "webhook" })), 0), "Installed (evidence: webhook)", "of the installer, not of the system");
  assert.equal(doing(view(run("done", "SUCCESS", { noSystem: true })), 0), "Finished: nothing was installed");
  assert.equal(doing(view(run("done", "SUCCESS", { type: "Inspect" })), 0), "Inspection done");
  assert.equal(doing(view(run("done", "SUCCESS", { type: "BMCJob" })), 0), "BMC job done");
  assert.equal(shape(run("done", "SUCCESS", { evidence: "weak" })), "dddddddddd.", "no system has reported");
  assert.equal(shape(run("done", "SUCCESS", { noSystem: true })), "dddddddddd.");
  assert.equal(imageOf({ ...view(run("done", "SUCCESS", { noSystem: true })), image: "debian-12" }), undefined);
  assert.equal(imageOf({ ...view(run("done", "SUCCESS", { image: "debian-13" })), image: "debian-12" }), "debian-13");
  assert.equal(isWeak(run("done", "SUCCESS", { evidence: "weak" })), true);
  for (const state of ["PREPARING", "RUNNING", "FAILED", "TIMEOUT", "CANCELLED"]) assert.equal(isWeak(run("action", state, { evidence: "weak" })), false, state);
});

test("a BMC that does not answer does not look calm", () => {
  const w = run("power", "RUNNING", { retrying: ["PowerOff failed 2 times: no answer"] });
  assert.equal(tone(view(w)), "retrying");
  assert.equal(doing(view(w), 0), "Trying again: Power: off, network boot, on");
  assert.equal(tone(view({ ...w, state: "FAILED" })), "failed");
  assert.equal(tone(view({ ...w, question: { id: "1", text: "" } })), "waiting");
});

const fleet = (...ms) => {
  const machines = new Map(ms.map((m) => [m.name, m]));
  return [[...machines.keys()], machines, new Map(ms.map((m) => [m.name, tone(m)]))];
};

test("who waits comes first, and the rest by name", () => {
  const at = (name, phase, state, more) => ({ name, bmc: { driver: "ipmi" }, workflow: run(phase, state, more) });
  const all = fleet(
    at("a", "done", "SUCCESS"),
    at("b", "action", "RUNNING"),
    at("c", "failed", "FAILED"),
    at("d", "power", "RUNNING", { retrying: ["x"] }),
    at("e", "waiting-for-operator", "RUNNING"),
    { name: "f", labels: { rack: "r7" }, interfaces: [{ mac: "02:00:00:00:00:0F", address: "10.0.0.9" }] },
    { name: "g", workflow: run("power", "RUNNING") },
  );
  const list = arrange(...all, "", "");
  assert.equal(list.rows.map((m) => m.name).join(""), "egdcbaf");
  assert.deepEqual(list.counts, { waiting: 2, retrying: 1, failed: 1, working: 1, idle: 1, done: 1 });
  assert.deepEqual(list.toPower.map((m) => m.name), ["g"]);
  assert.equal(arrange(...all, "failed", "").rows.map((m) => m.name).join(""), "c");
  assert.deepEqual(arrange(...all, "failed", "").counts, list.counts);
  for (const find of ["rack=r7", "0.0.9", "00:0f"]) assert.equal(arrange(...all, "", find).rows.map((m) => m.name).join(""), "f", find);
  assert.equal(matches({ name: "x" }, "y"), false);
});

test("only rows in view are drawn", () => {
  const rows = (count, tall = 0) => topsOf(Array.from({ length: count }, (_, i) => i), (i) => i < tall, 68, 34);
  assert.deepEqual(visible(rows(5000), 0, 680), { from: 0, to: 32 });
  assert.deepEqual(visible(rows(5000), 34_000, 680), { from: 987, to: 1032 });
  assert.deepEqual(visible(rows(5), 34_000, 680), { from: 0, to: 5 }); // the list has become short while it was scrolled down
  assert.deepEqual(visible(rows(0), 0, 680), { from: 0, to: 0 });
  assert.deepEqual(visible(rows(5000, 100), 34_000, 680), { from: 887, to: 932 }, "below tall rows");
  assert.deepEqual(visible(rows(5000, 100), 6460, 680), { from: 82, to: 122 }, "across the last tall row");
});

test("what an installation would overwrite is named", () => {
  const m = { name: "m" };
  assert.equal(atStake(m, []), "");
  assert.equal(atStake(m, [{ path: "/dev/sda", size: 1e12, blank: true }]), "");
  assert.match(atStake(m, [{ path: "/dev/sda", size: 1e12, serial: "S1", written: "run" }]), /S1: written by Ingot/);
  assert.match(atStake(m, [{ path: "/dev/sda", size: 1e12, signatures: ["ext4"] }]), /ext4/);
  assert.match(atStake({ ...m, workflow: run("done", "SUCCESS", { image: "debian-12" }) }, []), /debian-12 is installed/);
  assert.equal(atStake({ ...m, workflow: run("done", "SUCCESS", { type: "Inspect" }) }, []), "");
  assert.equal(atStake({ ...m, workflow: run("done", "SUCCESS", { type: "Decommission" }) }, []), "");
  assert.equal(atStake({ ...m, workflow: run("done", "SUCCESS", { noSystem: true, template: "try" }) }, []), "");
  assert.match(atStake({ ...m, installed: { template: "motd", noSystem: true } }, []), /\(motd\) wrote no system, so an earlier one may still be there/);
});

test("a machine that was decommissioned says what it is", () => {
  const retired = (state) => ({ ...view(run("failed", state, { type: "Decommission", ended: "2026-01-01T00:00:00Z" })), standing: { state: state === "SUCCESS" ? "available" : "quarantined" } });
  assert.equal(doing(retired("FAILED"), 0), "Quarantined");
  assert.match(doing(retired("SUCCESS"), 0), /available/);
  assert.equal(stepsOf(run("action", "RUNNING", { type: "Decommission" }), "working", [], 0).map((s) => s.id).includes("reboot"), false);
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

const genesis = (steps, more = {}) => ({ run: "r", id: "genesis/home", type: "Genesis", name: "home", state: "RUNNING", step: "router", started: "2026-01-01T00:00:00Z", steps, ...more });
const row = (name, state, more = {}) => ({ name, does: `does ${name}`, undo: "none: this step only checks", state, budget: 60e9, ...more });

test("an operation waits when it asks, or when the machine of its step does", () => {
  const steps = [row("preflight", "done"), row("router", "running", { machine: "m", run: "r1", waits: "the router's report", since: "2026-01-01T00:00:10Z" }), row("relay", "pending")];
  const o = genesis(steps);
  const none = new Map();
  assert.equal(standing(o, none), "working");
  assert.equal(progress(o), "1 of 3 steps done");
  // Power by hand: an operator is awaited, though nothing is asked.
  const byHand = new Map([["m", { name: "m", workflow: run("power", "RUNNING", { run: "r1" }) }]]);
  assert.equal(standing(o, byHand), "waiting");
  assert.equal(stepTone(steps[1], o, byHand), "waiting");
  // Another run of that machine is none of the step's business.
  assert.equal(standing(o, new Map([["m", { name: "m", workflow: run("power", "RUNNING", { run: "r2" }) }]])), "working");
  assert.equal(acting(steps[1], byHand).name, "m");
  assert.equal(standing(genesis([row("router", "failed")], { question: { id: "router.1", text: "no answer" } }), none), "waiting");
  assert.equal(standing(genesis([row("router", "failed")], { state: "FAILED" }), none), "failed");
  assert.equal(standing(genesis([row("router", "done")], { state: "SUCCESS" }), none), "done");
  assert.equal(stepTone(row("router", "running"), genesis([], { state: "FAILED" }), none), "idle");
});

test("a step says since when, for what, and when it is late", () => {
  const s = row("router", "running", { waits: "the router's report", since: "2026-01-01T00:00:00Z" });
  const minute = Date.parse("2026-01-01T00:01:00Z");
  assert.equal(took(s, minute), 60);
  assert.equal(late(s, minute), false);
  assert.equal(late(s, minute + 1000), true);
  assert.equal(saying(s), "does router Waits for: the router's report");
  assert.equal(saying({ ...s, message: "no answer yet" }), "no answer yet");
  assert.equal(stateOf(row("x", "undone")), "undone");
  assert.equal(took({ ...s, state: "done", ended: "2026-01-01T00:00:30Z" }, minute), 30);
  assert.equal(took(row("x", "pending"), minute), undefined);
});

test("S47: an operation's text is inert", () => {
  const o = parse(JSON.stringify(genesis([row("router", "failed", { message: "\x1b]0;owned\x07\x1b[31mno\u202e answer" })], { message: "<img src=x onerror=alert(1)>\x00" })));
  assert.equal(saying(o.steps[0]), "no answer");
  assert.equal(o.message, "<img src=x onerror=alert(1)>"); // shown as text: nothing in the page takes HTML
});

test("a search finds everything, and counts what it does not show", () => {
  const many = Array.from({ length: 9 }, (_, i) => ({ name: `node-${i}`, interfaces: [{ mac: "02:00:00:00:00:0f", address: `10.0.0.${i}` }] }));
  const hay = { machines: many, operations: [genesis([])], images: ["debian-12", "talos"], templates: ["image"], runs: [{ run: "r-1", machine: "node-3", image: "debian-12", state: "FAILED", started: "2026-01-01T10:20:30Z" }] };
  const found = (text) => find(text, hay).map((k) => [k.kind, k.count, k.hits.length, k.hits[0].link]);
  assert.deepEqual(found("node-"), [["Machines", 9, 6, "#/machines/node-0"], ["Runs", 1, 1, "#/runs/r-1"]]);
  assert.deepEqual(found("debian"), [["Images", 1, 1, "#/images/debian-12"], ["Runs", 1, 1, "#/runs/r-1"]]);
  assert.deepEqual(found("home"), [["Operations", 1, 1, "#/operations/r"]]);
  assert.deepEqual(found("imag"), [["Templates", 1, 1, "#/templates/image"]]);
  assert.deepEqual(found("nothing"), []);
  assert.equal(find("r-1", hay)[0].hits[0].about, "failed, 2026-01-01 10:20");
});

test("installations are counted on the day on which they ended", () => {
  const noon = new Date(2026, 2, 30, 12).getTime(); // after the night in which Europe's clocks change
  const ended = (days, state, more) => run("done", state, { ended: new Date(new Date(noon).setDate(30 - days)).toISOString(), ...more });
  const runs = [ended(0, "SUCCESS"), ended(0, "TIMEOUT"), ended(1, "SUCCESS"), ended(2, "FAILED"), ended(9, "SUCCESS"), ended(0, "CANCELLED"), ended(0, "SUCCESS", { type: "Inspect" }), ended(0, "SUCCESS", { noSystem: true }), run("action", "RUNNING")];
  assert.deepEqual(perDay(runs, noon, 3).map((b) => b.parts), [[0, 1], [1, 0], [1, 1]]);
  assert.equal(new Set(perDay([], noon, 30).map((b) => b.label)).size, 30);
});

test("the duration of an action is the median of those that succeeded", () => {
  const actions = (...seconds) => run("done", "SUCCESS", { actions: [...seconds.map((s) => ({ name: "write", state: "SUCCESS", seconds: s })), { name: "boot", state: "FAILED", seconds: 900 }] });
  assert.deepEqual(perAction([actions(5, 100), actions(7)]), [{ label: "write", parts: [7] }]);
  assert.deepEqual(perAction([]), []);
  const phases = [["ready", 90], ["waiting", 7], ["dhcp", 0.4]].map(([phase, seconds]) => ({ phase, seconds, count: 1 }));
  assert.deepEqual(perPhase(phases), [
    { label: "DHCP", parts: [0.4] },
    { label: "Ready", parts: [90] },
    { label: "waiting", parts: [7] },
  ]);
});
