// Tests of templates, tokens and power.
import assert from "node:assert/strict";
import { test } from "node:test";
import { answers, asked, load, mount, pass, root, sent } from "./dom.mjs";

const { Templates } = await load("templates.tsx");
const { Tokens } = await load("tokens.tsx");
const { ApplyFile } = await load("apply.tsx");
const { InstallMany } = await load("install-many.tsx");
const { OperationPanel } = await load("operations.tsx");
const { Power } = await load("machine-power.tsx");

const at = (view, name = "") => ({ view, name, act: "" });
const store = { idle: false, names: ["m"] };
const own = { name: "own", source: "name: own\ntasks: []\n", updated: "2026-01-01T00:00:00Z" };
const templates = (...all) => () => [200, { items: all }];
const editor = (page, value) => page.send(root.all((n) => n.localName === "textarea")[0], "input", { value });

test("a template is saved with the version that was opened, and problems are shown at their lines", async () => {
  answers["GET /v1/templates"] = templates(own, { name: "image", source: "x", builtin: true });
  answers["POST /v1/templates"] = (n) => [[400, { error: "own:2: bad", problems: [{ line: 2, field: "tasks", what: "<b>no action</b>", remedy: "add one" }] }], [412, { error: "stale" }], [201, { ...own, updated: "2026-01-02T00:00:00Z" }]][n - 1];
  const page = await mount(Templates, { store, place: at("templates", "own"), now: 0 });
  assert.equal(page.find("data-choice", "save").attributes.disabled, true);
  await editor(page, "name: own\ntasks: {}\n");
  await page.press("save");
  assert.match(page.find("data-problems").text, /line 2 tasks: <b>no action<\/b> \(add one\)/);
  assert.deepEqual(root.all((n) => n.attributes.class === "wrong").map((n) => n.text), ["2"]);
  await page.press("save");
  assert.match(root.text, /Another has changed this template/);
  await page.press("save");
  assert.match(page.find("data-said").text, /Saved/);
  assert.deepEqual(sent.map((s) => s.body.updated), Array(3).fill(own.updated));
});

test("a new template replaces no other, and one of Ingot is not changed", async () => {
  answers["GET /v1/templates"] = templates(own, { name: "image", source: "x", builtin: true });
  const page = await mount(Templates, { store, place: at("new", "template"), now: 0 });
  await editor(page, "name: own\n");
  await page.press("save");
  assert.match(root.text, /a template named “own” already/);
  assert.ok(!asked.includes("POST /v1/templates"));
  await page.show({ store, place: at("templates", "image"), now: 0 });
  assert.ok(!page.find("data-choice", "save"));
  assert.ok(!page.find("data-by-name"));
});

test("what is edited is rendered for a machine", async () => {
  answers["GET /v1/templates"] = templates(own);
  answers["POST /v1/templates/own/render"] = () => [200, { actions: [{ name: "write", image: "image2disk", timeout: 60, environment: { DEST_DISK: "<i>x</i>" } }], warnings: ["odd"] }];
  const page = await mount(Templates, { store, place: at("templates", "own"), now: 0 });
  await editor(page, "name: own\n# new\n");
  await page.type("machine", "m");
  await page.send(page.find("data-render"), "submit");
  assert.deepEqual(sent[0].body, { machine: "m", source: "name: own\n# new\n" });
  assert.match(page.find("data-rendered").text, /odd.*write.*image2disk.*DEST_DISK<i>x<\/i>/);
});

test("a token is shown once, and revoked by its name", async () => {
  answers["GET /v1/tokens"] = () => [200, { items: [{ id: "1", name: "ci", role: "read", by: "admin" }, { id: "2", name: "old", role: "operate", off: true }] }];
  answers["POST /v1/tokens"] = () => [201, { id: "3", name: "ops", role: "operate", token: "ingot_secret" }];
  answers["DELETE /v1/tokens/ci"] = answers["POST /v1/tokens/old/enable"] = () => [204];
  const page = await mount(Tokens, { store, now: 0 });
  await page.type("name", "ops");
  await page.type("role", "operate");
  await page.type("for", "24h");
  await page.send(page.find("data-add").all((n) => n.localName === "form")[0], "submit");
  assert.deepEqual(sent[0].body, { name: "ops", role: "operate", for: "24h" });
  assert.equal(page.find("data-secret").text, "ingot_secret");
  await page.press("kept");
  assert.doesNotMatch(root.text, /ingot_secret/);
  await page.press("enable");
  const form = page.find("data-token", "ci").all((n) => n.localName === "form")[0];
  await page.send(form.all((n) => n.attributes.name === "confirm")[0], "input", { value: "ci" });
  await page.send(form, "submit");
  assert.deepEqual(asked.filter((a) => /DELETE|enable/.test(a)), ["POST /v1/tokens/old/enable", "DELETE /v1/tokens/ci"]);
});

test("a machine is switched off by its name", async () => {
  answers["POST /v1/machines/m/power"] = answers["POST /v1/machines/m/boot-device"] = () => [202, { job: "j" }];
  answers["GET /v1/bmc/jobs/m/j"] = (n) => [200, [{ state: "RUNNING" }, { state: "SUCCESS", message: "power is on", ended: "2026-01-01T00:00:00Z" }, { state: "FAILED", message: "<b>no answer</b>", ended: "2026-01-01T00:00:00Z" }][Math.min(n, 3) - 1]];
  const page = await mount(Power, { machine: { name: "m", bmc: { driver: "ipmi" } } });
  await page.press("power-on");
  assert.match(page.find("data-result").text, /Under way/);
  await pass(2000);
  assert.match(page.find("data-result").text, /power is on/);
  answers["POST /v1/bmc/check"] = () => [200, { ok: true, power: "on", model: "<b>X</b>" }];
  await page.press("check-bmc");
  assert.equal(page.find("data-result").text, "power on · <b>X</b>");
  const form = page.find("data-by-name").all((n) => n.localName === "form")[0];
  await page.type("action", "off");
  await page.send(form, "submit");
  await page.send(page.find("name", "confirm"), "input", { value: "m" });
  await page.send(form, "submit");
  assert.match(form.text, /<b>no answer<\/b>/);
  await page.type("device", "disk");
  await page.send(root.all((n) => n.localName === "form")[0], "submit");
  assert.deepEqual(sent.map((s) => s.body), [{ action: "on" }, { machine: "m" }, { action: "off" }, { device: "disk", persistent: false, efiBoot: false }]);
  await page.show({ machine: { name: "m" } });
  assert.equal(root.text, "");
});

test("many are installed as they were shown", async () => {
  answers["POST /v1/provision?dryRun=true"] = (n) => (n > 1 ? [202, { workflow: "w", run: "", machines: ["a", "<b>b</b>", "c"] }] : [400, { error: "x", problems: [{ field: "selector", what: "unknown operator" }, { field: "machines", what: 'machine "d" is busy' }] }]);
  answers["POST /v1/provision"] = () => [202, { workflow: "w", run: "r/1" }];
  const page = await mount(InstallMany, {});
  const form = root.all((n) => n.localName === "form")[0];
  await page.type("selector", "rack~r1");
  await page.send(form, "submit");
  assert.match(page.find("data-field", "selector").text, /unknown operator/);
  assert.match(page.find("data-field", "machines").text, /"d" is busy/);
  assert.ok(!page.find("data-preview"));
  await page.type("selector", "rack=r1");
  await page.send(form, "submit");
  assert.match(page.find("data-preview").text, /3 machines.*a first.*<b>b<\/b> c/);
  // Another form is another list.
  await page.type("concurrency", "3");
  assert.ok(!page.find("data-preview"));
  await page.send(form, "submit");
  await page.press("install-many");
  await page.press("install-many");
  const { name, ...rest } = sent.at(-1).body;
  assert.match(name, /^provision-\d{8}-\d{6}$/);
  assert.deepEqual(rest, { concurrency: 3, canary: 1, machines: ["a", "<b>b</b>", "c"] });
  assert.equal(location.hash, "#/operations/r%2F1");
});

test("an operation that installs many is paused and resumed", async () => {
  const operation = { run: "o", id: "recover/x", type: "Recover", name: "x", state: "RUNNING", steps: [], message: "1 of 3 installed" };
  answers["POST /v1/operations/o/pause"] = answers["POST /v1/operations/o/resume"] = () => [200, {}];
  const page = await mount(OperationPanel, { operation, store: {}, now: 0 });
  await page.press("pause");
  await page.show({ operation: { ...operation, next: "ingot operation resume provision/rack" }, store: {}, now: 0 });
  await page.press("resume");
  assert.deepEqual(asked, ["POST /v1/operations/o/pause", "POST /v1/operations/o/resume"]);
  await page.show({ operation: { ...operation, type: "Genesis" }, store: {}, now: 0 });
  assert.ok(!page.find("data-choice", "pause"));
});

test("machines that are installed together are retried by their operation", async () => {
  const operation = { run: "o", id: "together/x", type: "ProvisionTogether", name: "x", state: "FAILED", steps: [{ name: "a", machine: "a", state: "done" }, { name: "b", machine: "b", state: "failed" }] };
  answers["POST /v1/operations/o/retry"] = () => [202, { workflow: "together/x", run: "again" }];
  const page = await mount(OperationPanel, { operation, store: { machines: new Map() }, now: 0 });
  assert.ok(!page.find("data-choice", "pause"));
  await page.press("retry");
  await page.send(page.find("data-choice-sure", "retry"), "click");
  assert.deepEqual(asked, ["POST /v1/operations/o/retry"]);
  assert.equal(location.hash, "#/operations/again");
  for (const other of [{ state: "SUCCESS" }, { state: "RUNNING" }, { type: "Recover" }]) {
    await page.show({ operation: { ...operation, ...other }, store: { machines: new Map() }, now: 0 });
    assert.ok(!page.find("data-choice", "retry"));
  }
});

test("what a file changes is shown before it is stored, and the values of others stay", async () => {
  const change = { field: "image", old: "<b>a</b>", new: "b", conflict: true };
  const answer = (stored, ...items) => [200, { stored, items, warnings: ["f.yaml:3: <i>x</i> is not stored"] }];
  const n1 = { kind: "machine", name: "n1", result: "added" };
  answers["POST /v1/apply"] = (n) =>
    [
      [400, { error: "2 problems", problems: [{ file: "f.yaml", line: 2, field: "name", what: "bad" }, { what: "no line" }] }],
      answer(false, n1, { kind: "machine", name: "n2", result: "changed", changes: [change] }),
      answer(false, n1),
      answer(true, n1),
    ][n - 1];
  const page = await mount(ApplyFile, {});
  assert.equal(page.find("data-choice", "preview").attributes.disabled, true);
  const show = () => page.send(root.all((n) => n.localName === "form")[0], "submit");
  await page.send(page.find("id", "field-file"), "change", { files: [{ name: "f.yaml", text: async () => "name: n1\nx\n" }] });
  await page.type("set", " rack ");
  await show();
  assert.match(page.find("data-problems").text, /line 2 name: bad.*no line/);
  await show();
  assert.match(page.find("data-preview", 2).text, /1 added, 1 changed.*f.yaml:3: <i>x<\/i>.*image: <b>a<\/b> → b/);
  assert.equal(page.find("data-choice", "apply").attributes.disabled, true);
  await page.type("force", true);
  assert.ok(!page.find("data-preview"), "what is to be overwritten is shown again");
  await show();
  await page.press("apply");
  assert.match(root.text, /Stored: 1 added/);
  const files = [{ name: "f.yaml", text: "name: n1\nx\n" }];
  assert.deepEqual(sent.map((s) => s.body), [[false, true], [false, true], [true, true], [true, false]].map(([forceConflicts, dryRun]) => ({ files, set: "rack", forceConflicts, dryRun })));
});
