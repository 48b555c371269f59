// Tests of what components do over time, in as much of a document as Preact needs.
import assert from "node:assert/strict";
import { test } from "node:test";
import { h } from "preact";
import { answers, asked, load, mount, pass, root, sent, times } from "./dom.mjs";

const { PowerOn } = await load("power.tsx");
const { Install } = await load("install.tsx");
const { Idle, MachinePanel } = await load("../test/idle.ts");
const { OperationPanel, Operations } = await load("operations.tsx");
const { Log } = await load("log.tsx");
const { SameQuestions } = await load("many.tsx");
const { arrange } = await load("list.ts");
const { tone } = await load("phases.ts");
const { Past, RunPanel } = await load("history.tsx");

const waiting = (...names) => ({ machines: names.map((name) => ({ name, workflow: { run: `run-${name}`, machine: name, phase: "power", state: "RUNNING" } })) });
const reported = () => asked.map((a) => /^POST \/v1\/workflows\/run-(.*)\/powered-on$/.exec(a)?.[1]);

test("only machines that were in the list when it was opened are reported as switched on", async () => {
  const page = await mount(PowerOn, waiting("a", "b"));
  const ticked = () => root.all((n) => n.localName === "li" && n.all((x) => x.localName === "input")[0].attributes.checked).map((li) => li.all((x) => x.localName === "label")[0].text.trim());
  assert.equal(root.all((n) => n.localName === "li").length, 0, "closed, it draws no machine");
  await page.send(page.find("data-bulk"), "toggle", { open: true });
  assert.deepEqual(ticked(), ["a", "b"]);
  await page.show(waiting("a", "b", "c"));
  assert.deepEqual(ticked(), ["a", "b"]);
  await page.press("powered-on-many");
  assert.equal(page.find("data-choice-sure").text, "Yes, all 2");
  await page.show(waiting("a", "b", "c", "d"));
  assert.equal(page.find("data-choice-sure").text, "Yes, all 2");
  await page.press("powered-on-many");
  assert.deepEqual(reported(), ["a", "b"]);
});

test("a machine that has to be switched on once more is not ticked from before", async () => {
  const page = await mount(PowerOn, waiting("a", "b", "c"));
  await page.send(page.find("data-bulk"), "toggle", { open: true });
  await page.show(waiting("b", "c"));
  await page.show(waiting("a", "b", "c"));
  assert.equal(page.find("data-choice").text, "2 are switched on");
  // Another run of the same machine is another question.
  const again = waiting("b", "c");
  again.machines[0].workflow.run = "run-other";
  await page.show(again);
  assert.equal(page.find("data-choice").text, "1 are switched on");
});

const machine = "/v1/machines/m";
const idle = { machine: { name: "m", image: "debian-12" } };

test("without knowing what is on the disks nothing can be installed", async () => {
  answers[`${machine}/disks`] = (n) => (n === 1 ? [503, { error: "the disks cannot be read now" }] : [200, { items: [{ path: "/dev/sda", serial: "S1", size: 1e12, signatures: ["ext4"] }] }]);
  answers[machine] = () => [200, idle.machine];
  const page = await mount(Install, idle);
  assert.ok(!page.find("data-install"));
  assert.match(root.text, /the disks cannot be read now/);
  await page.press("load-again");
  assert.match(page.find("data-stake").text, /S1: ext4/);
  assert.doesNotMatch(root.text, /cannot be read/);
});

test("what is installed is known before anything can be installed", async () => {
  answers[`${machine}/disks`] = () => [404, { error: "no agent has looked" }];
  answers[machine] = (n) => (n === 1 ? [500, { error: "the machine cannot be read now" }] : [200, { ...idle.machine, installed: { image: "debian-11" } }]);
  const page = await mount(Install, idle);
  assert.ok(!page.find("data-install"));
  await page.press("load-again");
  assert.match(page.find("data-stake").text, /debian-11 is installed/);
  assert.equal(page.find("data-choice", "install").attributes.disabled, true);
});

test("a new machine is installed without typing its name", async () => {
  answers[`${machine}/disks`] = () => [404, { error: "no agent has looked" }];
  answers[machine] = () => [200, idle.machine];
  const page = await mount(Install, idle);
  assert.ok(!page.find("data-stake"));
  await page.send(page.find("data-install"), "submit");
  assert.equal(times(`POST ${machine}/provision`), 1);
});

const ended = { run: "r", machine: "m", type: "Inspect", state: "FAILED", phase: "failed", started: "2026-01-01T00:00:00Z", actions: [] };
const store = { link: "live", meter: {} };

test("the record of a finished run is asked for until it was had", async () => {
  answers[`${machine}/workflow`] = (n) => (n < 3 ? [503, { error: "not now" }] : [200, { ...ended, next: "ingot machine inspect m" }]);
  answers[machine] = () => [200, idle.machine];
  const page = await mount(MachinePanel, { machine: { name: "m", workflow: ended }, store, now: 0 });
  await pass();
  assert.equal(times(`GET ${machine}/workflow`), 1);
  assert.doesNotMatch(root.text, /ingot machine inspect m/);
  await pass(4000);
  await pass(4000);
  assert.match(root.text, /ingot machine inspect m/);
  await pass(20_000);
  assert.equal(times(`GET ${machine}/workflow`), 3);
});

test("the log of a finished action is asked for until it was had", async () => {
  const logs = "/v1/workflows/r/logs?action=0&attempt=0";
  answers[logs] = (n) => (n < 3 ? [503, { error: "not now" }] : [200, "the last line"]);
  const page = await mount(Log, { workflow: { ...ended, actions: [{ name: "write", state: "FAILED" }] } });
  assert.equal(times(`GET ${logs}`), 1);
  await pass(2000);
  await pass(2000);
  assert.match(root.text, /the last line/);
  await pass(20_000);
  assert.equal(times(`GET ${logs}`), 3);
});

test("an action without a log is not asked for it again", async () => {
  const logs = "/v1/workflows/r/logs?action=0&attempt=0";
  answers[logs] = () => [404, { error: "there is none" }];
  await mount(Log, { workflow: { ...ended, actions: [{ name: "write", state: "FAILED" }] } });
  await pass(20_000);
  assert.equal(times(`GET ${logs}`), 1);
});

const asking = {
  run: "r", machine: "m", type: "Provision", state: "PENDING", phase: "waiting-for-operator", started: "2026-01-01T00:00:00Z", actions: [],
  next: "ingot workflow decide m --question 3.bind.1 --choice retry --disk-serial SERIAL",
  question: {
    id: "3.bind.1", text: "the machine has 2 fixed disks and no disk selector", choices: ["retry", "abort"],
    disks: [{ path: "/dev/sda", serial: "S1", size: 1e12 }, { path: "/dev/sdb", serial: "it's", size: 1e12 }, { path: "/dev/sdc", wwn: "0x5", size: 1e12 }],
  },
};

test("the command of a question has the chosen disk, and a question is ended in one way", async () => {
  answers[`${machine}/workflow`] = () => [200, asking];
  answers[machine] = () => [200, idle.machine];
  const page = await mount(MachinePanel, { machine: { name: "m", workflow: asking }, store, now: 0 });
  const commands = () => root.all((n) => n.localName === "code").map((n) => n.text).filter((c) => c.includes("decide"));
  assert.deepEqual(commands(), [asking.next]);
  const choose = (i) => page.send(root.all((n) => n.localName === "input")[i], "change");
  await choose(0);
  assert.deepEqual(commands(), [asking.next.replace("SERIAL", "S1")]);
  await choose(1);
  assert.deepEqual(commands(), [asking.next.replace("SERIAL", "'it'\\''s'")]);
  await choose(2);
  assert.deepEqual(commands(), [asking.next.replace("serial SERIAL", "wwn 0x5")]);
  assert.ok(page.find("data-choice", "abort"));
  assert.ok(!page.find("data-choice", "cancel"));
});

const operation = { run: "o", id: "genesis/lab", type: "Genesis", name: "lab", state: "RUNNING", steps: [], question: { id: "relay.1", text: "the relay does not answer", choices: ["retry", "abort"] }, next: "ingot operation decide genesis/lab --question relay.1 --choice retry" };

test("an operation that asks is ended in one way too", async () => {
  const page = await mount(OperationPanel, { operation, store, now: 0 });
  assert.ok(page.find("data-choice", "abort"));
  assert.ok(!page.find("data-choice", "cancel"));
  assert.equal(root.text.split(operation.next).length, 2);
  await page.show({ operation: { ...operation, question: undefined, next: undefined }, store, now: 0 });
  assert.ok(page.find("data-choice", "cancel"));
});

test("several machines that ask the same get one answer, each with the id of its own question", async () => {
  const asks = (name, id, text, more) => ({ name, bmc: { driver: "ipmi" }, workflow: { ...asking, run: `run-${name}`, machine: name, question: { id, text, choices: ["retry", "abort"], ...more } } });
  const all = [
    asks("a", "1.power.1", "BMC 10.0.0.1 of a does not answer"),
    asks("b", "1.power.2", "BMC 10.0.0.2:623 of b does not answer"),
    asks("c", "1.power.1", "BMC 10.0.0.3 of c does not answer"),
    asks("d", "1.power.1", "BMC 10.0.0.4 of d does not answer", { choices: ["retry", "skip", "abort"] }),
    asks("e", "1.bind.1", "which disk?", { disks: asking.question.disks }),
    asks("f", "1.bind.1", "which disk?", { disks: asking.question.disks }),
    asks("g", "1.bind.1", "no disk fits"),
    asks("h", "1.bind.1", "no disk fits"),
  ];
  const machines = new Map(all.map((m) => [m.name, m]));
  const { equal } = arrange([...machines.keys()], machines, new Map(all.map((m) => [m.name, tone(m)])), "", "");
  assert.deepEqual(equal.map((e) => [e.text, e.machines.map((m) => m.name).join("")]), [["BMC … of … does not answer", "abc"]], "none about a disk");

  const page = await mount(SameQuestions, { groups: equal });
  await page.send(page.find("data-bulk"), "toggle", { open: true });
  await page.send(root.all((n) => n.localName === "input")[2], "change", { checked: false });
  assert.equal(page.find("data-choice", "retry-many").text, "Try again: 2");
  await page.press("retry-many");
  assert.deepEqual(sent, [], "it asks once more");
  await page.press("retry-many");
  assert.deepEqual(sent.map((s) => [s.path, s.body]), [
    ["/v1/workflows/run-a/decide", { question: "1.power.1", choice: "retry" }],
    ["/v1/workflows/run-b/decide", { question: "1.power.2", choice: "retry" }],
  ]);
});

test("a run of machines that are installed together has no retry of its own", async () => {
  for (const [next, own] of [["ingot workflow retry m --from start", true], ["ingot together retry k3s", false]]) {
    const failed = { ...ended, type: "Provision", state: "FAILED", next };
    answers[`${machine}/workflow`] = () => [200, failed];
    answers[machine] = () => [200, idle.machine];
    const page = await mount(MachinePanel, { machine: { name: "m", workflow: failed }, store, now: 0 });
    assert.equal(Boolean(page.find("data-choice", "retry-start")), own);
  }
});

test("a session that may only read picks logs, and changes nothing", async () => {
  const failed = { ...ended, type: "Provision", actions: [{ name: "write", state: "FAILED", attempt: 2 }] };
  answers[`${machine}/workflow`] = () => [200, failed];
  answers[machine] = () => [200, idle.machine];
  const logs = "/v1/workflows/r/logs?action=0&attempt=";
  answers[`${logs}0`] = () => [200, "the newest"];
  answers[`${logs}1`] = () => [200, "the first"];
  const Session = (props) => h(Idle.Provider, { value: true }, h(MachinePanel, props));
  const page = await mount(Session, { machine: { name: "m", workflow: failed }, store, now: 0 });
  assert.equal(page.find("data-choice", "retry-start").attributes.disabled, true);
  const selects = root.all((n) => n.localName === "select" && /log/.test(n.attributes["aria-label"] ?? ""));
  assert.deepEqual(selects.map((s) => s.attributes.disabled), [undefined, undefined]);
  assert.match(root.text, /the newest/);
  await page.send(selects[1], "change", { value: "1" });
  assert.match(root.text, /the first/);
});

test("S47: runs, syslog and packets of a machine are asked for when they are opened, and are inert", async () => {
  const hostile = "\u001b]0;owned\u0007<img src=x onerror=alert(1)>\u202e";
  answers["/v1/workflows?machine=m&limit=50"] = () => [200, { items: [{ ...ended, run: "r/1", type: "Provision", image: hostile }] }];
  answers[`${machine}/syslog?sort=-seq&limit=200`] = () => [200, { items: [{ seq: 2, at: "2026-01-01T00:00:00Z", severity: "err", program: "sshd", text: hostile }] }];
  answers[`${machine}/why`] = (n) => (n === 1 ? [503, { error: "this server answers no machines" }] : [200, { verdict: "disk", reasons: [hostile], heard: [{ at: "2026-01-01T00:00:00Z", where: "eno2", request: `DISCOVER ${hostile}`, answer: "OFFER" }] }]);
  const page = await mount(Past, { machine: "m", store, now: 0 });
  assert.deepEqual(asked, []);
  const text = "<img src=x onerror=alert(1)>";
  const open = async (part) => {
    await page.send(page.find("data-part", part), "toggle", { open: true });
    await pass();
  };
  await open("runs");
  assert.equal(root.all((n) => n.localName === "a")[0].attributes.href, "#/runs/r%2F1");
  assert.ok(page.find("data-run", "r/1").text.includes(text));
  await open("syslog");
  assert.ok(page.find("data-syslog", "err").text.endsWith(text));
  await open("packets");
  assert.match(root.text, /answers no machines/);
  await pass(5000);
  assert.ok(page.find("data-packet").text.endsWith(`DISCOVER ${text} → OFFER`));
  assert.doesNotMatch(root.text, /answers no machines/);
  assert.equal(root.all((n) => n.localName === "img").length, 0);
  const before = asked.length;
  for (const part of ["runs", "syslog", "packets"]) await page.send(page.find("data-part", part), "toggle", { open: false });
  await pass(20_000);
  assert.equal(asked.length, before, "what is closed is not asked for");
});

test("a run of the past shows its log with control characters in sight, and is asked for once", async () => {
  answers["/v1/workflows/old"] = () => [200, { ...ended, run: "old", type: "Provision", message: "no disk", actions: [{ name: "write", state: "FAILED" }] }];
  answers["/v1/workflows/old/logs?action=0&attempt=0"] = () => [200, "a\u001b[31m\r\nb\u202e\tc"];
  const page = await mount(RunPanel, { run: "old", store, now: 0 });
  await pass();
  assert.match(root.text, /Provision of m/);
  assert.equal(page.find("data-log", "write").text, "a\u241b[31m\nb<U+202E>\tc");
  await pass(20_000);
  assert.equal(times("GET /v1/workflows/old"), 1);
});

test("operations that the stream no longer sends are listed, and a recovery is paused and goes on", async () => {
  const recover = { ...operation, run: "new", id: "recover/x", type: "Recover", name: "x", question: undefined, next: undefined, started: "2026-01-02T00:00:00Z", steps: [{ name: "a", state: "done" }, { name: "b", state: "pending" }] };
  answers["/v1/operations?limit=100"] = () => [200, { items: [{ ...recover, steps: [] }, { ...operation, run: "old", state: "SUCCESS", question: undefined, started: "2026-01-01T00:00:00Z" }] }];
  const held = { ...store, machines: new Map(), operations: new Map([["new", recover]]) };
  const page = await mount(Operations, { store: held, run: "new", now: 0 });
  await pass();
  assert.deepEqual(root.all((n) => "data-operation" in n.attributes).map((n) => n.attributes["data-operation"]), ["recover/x", "genesis/lab"]);
  assert.equal(root.all((n) => n.localName === "progress")[0].attributes["aria-label"], "1 of 2 steps done");
  await page.press("pause");
  held.operations.set("new", { ...recover, next: "ingot operation resume recover/x" });
  await page.show({ store: held, run: "new", now: 0 });
  await page.press("resume");
  assert.deepEqual(asked.filter((a) => a.startsWith("POST")), ["POST /v1/operations/new/pause", "POST /v1/operations/new/resume"]);
  await page.show({ store: { ...held, idle: true }, run: "new", now: 0 });
  assert.deepEqual(root.all((n) => n.localName === "button" && !n.attributes.disabled && !n.disabled).map((n) => n.attributes["data-choice"]), [], "a session that only reads");
});
