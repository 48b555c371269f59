// Tests of what components do over time, in as much of a document as Preact needs.
import assert from "node:assert/strict";
import { test } from "node:test";
import { answers, asked, load, mount, pass, root, sent, times } from "./dom.mjs";

const { PowerOn } = await load("power.tsx");
const { Install } = await load("install.tsx");
const { MachinePanel } = await load("panel.tsx");
const { OperationPanel } = await load("operations.tsx");
const { Log } = await load("log.tsx");
const { SameQuestions } = await load("many.tsx");
const { arrange } = await load("list.ts");
const { tone } = await load("phases.ts");

const waiting = (...names) => ({ machines: names.map((name) => ({ name, workflow: { run: `run-${name}`, machine: name, phase: "power", state: "RUNNING" } })) });
const reported = () => asked.map((a) => /^POST \/v1\/workflows\/run-(.*)\/powered-on$/.exec(a)?.[1]);

test("only machines that were in the list when it was opened are reported as switched on", async () => {
  const page = await mount(PowerOn, waiting("a", "b"));
  const ticked = () => root.all((n) => n.localName === "li" && n.all((x) => x.localName === "input")[0].attributes.checked).map((li) => li.all((x) => x.localName === "label")[0].text.trim());
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
  const logs = "/v1/workflows/r/logs?action=0";
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
  const logs = "/v1/workflows/r/logs?action=0";
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
