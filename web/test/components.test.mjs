// Tests of what components do over time, in as much of a document as Preact needs.
import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";
import { h, render } from "preact";
import { runnerImport } from "vite";

const load = async (name) => (await runnerImport(new URL(`../src/${name}`, import.meta.url).pathname, { logLevel: "silent" })).module;
const { PowerOn } = await load("power.tsx");
const { Install } = await load("install.tsx");
const { MachinePanel } = await load("panel.tsx");
const { OperationPanel } = await load("operations.tsx");
const { Log } = await load("log.tsx");

class Element {
  childNodes = [];
  attributes = {};
  listeners = {};
  parentNode = null;
  constructor(name, data) {
    this.nodeType = name ? 1 : 3;
    this.localName = name;
    this.data = data;
  }
  get firstChild() {
    return this.childNodes[0] ?? null;
  }
  get nextSibling() {
    const all = this.parentNode?.childNodes ?? [];
    return all[all.indexOf(this) + 1] ?? null;
  }
  insertBefore(node, next) {
    node.parentNode?.removeChild(node);
    this.childNodes.splice(next ? this.childNodes.indexOf(next) : this.childNodes.length, 0, node);
    node.parentNode = this;
  }
  removeChild(node) {
    this.childNodes.splice(this.childNodes.indexOf(node), 1);
    node.parentNode = null;
  }
  remove() {
    this.parentNode?.removeChild(this);
  }
  setAttribute(name, value) {
    this.attributes[name] = value;
  }
  removeAttribute(name) {
    delete this.attributes[name];
  }
  addEventListener(name, f) {
    this.listeners[name] = f;
  }
  removeEventListener(name) {
    delete this.listeners[name];
  }
  focus() {}
  get text() {
    return this.data ?? this.childNodes.map((n) => n.text).join("");
  }
  all(fits) {
    return [...(fits(this) ? [this] : []), ...this.childNodes.flatMap((n) => n.all(fits))];
  }
}
Object.defineProperty(globalThis, "navigator", { value: {}, configurable: true });
globalThis.document = { createElementNS: (_, name) => new Element(name), createTextNode: (text) => new Element(undefined, text) };

let answers; // by path: what the server answers, a function of the count of requests; [] by default
let root; // what is shown
let asked; // every request, as "METHOD path"
globalThis.fetch = async (path, { method = "GET" } = {}) => {
  asked.push(`${method} ${path}`);
  const f = answers[path];
  const [code, body] = f ? f(asked.filter((a) => a === `${method} ${path}`).length) : [200, { items: [] }];
  return new Response(typeof body === "string" ? body : JSON.stringify(body), { status: code });
};
const times = (what) => asked.filter((a) => a === what).length;

beforeEach(() => {
  mock.timers.reset(); // after a test that failed
  asked = [];
  answers = {};
  mock.timers.enable({ apis: ["setTimeout", "setInterval", "Date"] });
});
/** Lets the clock go on by ms, and what came of it be drawn. */
const pass = async (ms = 200) => {
  for (const step of [100, Math.max(0, ms - 200), 100]) {
    mock.timers.tick(step);
    for (let i = 0; i < 20; i++) await new Promise(setImmediate);
  }
};
afterEach(async () => {
  render(null, root);
  await pass();
  mock.timers.reset();
});
/** Shows a component; show draws it with other properties. */
const mount = async (component, props) => {
  root = new Element("body");
  const show = async (p) => {
    render(h(component, p), root);
    await pass();
  };
  await show(props);
  const find = (name, value) => root.all((n) => name in n.attributes && (value === undefined || n.attributes[name] === value))[0];
  const send = async (node, event, target = {}) => {
    node.listeners[event]?.call(node, { currentTarget: target, preventDefault() {} });
    await pass();
  };
  return { show, find, send, press: (choice) => send(find("data-choice", choice) ?? find("data-choice-sure", choice), "click") };
};

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
