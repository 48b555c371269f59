// Tests of the forms with which machines are added and changed.
import assert from "node:assert/strict";
import { test } from "node:test";
import { answers, asked, load, mount, root, sent } from "./dom.mjs";

const { diff, merge, fields, both, draftOf, docOf, documentOf, netmask, yamlOf } = await load("document.ts");
const { fieldOf } = await load("form.tsx");
const { placeOf, pathTo, tabOf } = await load("route.ts");
const { AddMachine, EditMachine } = await load("machine-form.tsx");

test("places and their links", () => {
  assert.deepEqual(placeOf(""), { view: "machines", name: "", act: "" });
  for (const hostile of ["a/b", "%", "constructor", "<b>", "new"]) assert.deepEqual(placeOf(pathTo("machines", hostile, "edit")), { view: "machines", name: hostile, act: "edit" });
  assert.equal(placeOf("#/machines/%").name, "");
  assert.equal(tabOf(placeOf("#/constructor")), "machines");
});

test("merge patches", () => {
  const a = { name: "m", labels: { rack: "a1", old: "x" }, sshKeys: ["k"], bmc: { driver: "ipmi", host: "h" } };
  const b = { name: "m", labels: { rack: "a2" }, sshKeys: ["k", "l"], image: "debian" };
  const patch = diff(a, b);
  assert.deepEqual(patch, { labels: { rack: "a2", old: null }, sshKeys: ["k", "l"], bmc: null, image: "debian" });
  assert.deepEqual(merge(a, patch), b);
  assert.deepEqual(diff(a, a), {});
  assert.deepEqual(fields(patch).sort(), ["bmc", "image", "labels.old", "labels.rack", "sshKeys"]);
  assert.deepEqual(both(["bmc", "image"], ["bmc.host"]), ["bmc"]);
  assert.deepEqual(both(["bmcs"], ["bmc"]), []);
});

const stored = {
  name: "m", version: 7, image: "debian-12", labels: { rack: "a1" }, kernelArgs: ["quiet"], hasUserData: true, updated: "2026-01-01T00:00:00Z",
  interfaces: [{ mac: "02:00:00:00:00:01", address: "10.0.0.11", leaseTime: "24h0m0s", uefi: true }],
  bmc: { driver: "ipmi", host: "10.0.9.1", user: "admin", hasPassword: true, cipherSuite: "3" }, netboot: { allowPXE: false }, workflow: null,
};

test("what a form does not show stays as it was", () => {
  const base = documentOf(stored);
  assert.deepEqual(docOf(draftOf(base), base), base);
  const draft = draftOf(base);
  draft.texts["bmc.driver"] = "redfish";
  draft.texts.labels = "rack=a2\n__proto__=x\nplain";
  assert.deepEqual(docOf(draft, base).bmc, { driver: "redfish", host: "10.0.9.1", user: "admin" });
  assert.deepEqual(JSON.stringify(docOf(draft, base).labels), '{"rack":"a2","__proto__":"x","plain":""}');
});

test("an address with a prefix sets the netmask", () => {
  assert.deepEqual([0, 9, 24, 31, 32].map(netmask), ["0.0.0.0", "255.128.0.0", "255.255.255.0", "255.255.255.254", "255.255.255.255"]);
  const nics = (address) => docOf({ texts: {}, nics: [{ was: {}, texts: { mac: "m", address } }] }, {}).interfaces;
  assert.deepEqual(nics("10.0.0.11/24"), [{ mac: "m", address: "10.0.0.11", netmask: "255.255.255.0" }]);
  for (const wrong of ["10.0.0.11/33", "fd00::1/64"]) assert.deepEqual(nics(wrong), [{ mac: "m", address: wrong }]);
});

test("a problem belongs to the field that is nearest", () => {
  const names = ["name", "labels", "bmc.host", "interfaces[0].mac", "interfaces[10].mac"];
  for (const [given, want] of [["name", "name"], ["labels.rack", "labels"], ["bmc.host", "bmc.host"], ["bmc", ""], ["interfaces[1].mac", ""], ["interfaces[10].mac", "interfaces[10].mac"], ["mac", "interfaces[0].mac"], ["names", ""], [undefined, ""]])
    assert.equal(fieldOf({ field: given, what: "" }, names), want);
});

test("all problems of a new machine are shown, each at its field", async () => {
  answers["POST /v1/machines"] = (n) => (n > 1 ? [201, { items: [] }] : [400, { error: "name: bad\ninterfaces[0].mac: bad", problems: [{ field: "name", what: "invalid name", remedy: "use a–z" }, { field: "interfaces[0].mac", what: "invalid MAC" }, { field: "storage", what: "<b>odd</b>" }] }]);
  const page = await mount(AddMachine, { store: { seen: [] }, mac: "" });
  await page.type("name", "Ä");
  await page.type("interfaces[0].mac", "x");
  await page.type("bmc.driver", "redfish");
  await page.type("bmc.host", "10.0.9.1");
  await page.type("bmc.password", "secret");
  await page.send(page.find("data-machine-form"), "submit");
  assert.match(page.find("data-field", "name").text, /invalid name \(use a–z\)/);
  assert.match(page.find("data-field", "interfaces[0].mac").text, /invalid MAC/);
  assert.equal(page.find("id", "field-name").attributes["aria-invalid"], "true");
  assert.match(page.find("role", "alert").text, /2 fields.*storage: <b>odd<\/b>/);
  assert.deepEqual(sent[0].body.machines, [{ name: "Ä", interfaces: [{ mac: "x" }], bmc: { driver: "redfish", host: "10.0.9.1", password: "secret" } }]);
  await page.type("name", "node-1");
  await page.send(page.find("data-machine-form"), "submit");
  assert.equal(location.hash, "#/machines/node-1");
});

test("an edit sends what was changed, with the version that was read, and keeps secrets", async () => {
  answers["GET /v1/machines/m"] = () => [200, stored];
  answers["PATCH /v1/machines/m"] = () => [200, { ...stored, version: 8, warnings: ["the BMC password was deleted"] }];
  const page = await mount(EditMachine, { name: "m" });
  await page.type("bmc.host", "10.0.9.2");
  await page.send(page.find("data-machine-form"), "submit");
  assert.deepEqual(sent.map((s) => [s.path, s.body, s.headers["If-Match"], s.headers["Content-Type"]]), [["/v1/machines/m", { bmc: { host: "10.0.9.2" } }, '"7"', "application/merge-patch+json"]]);
  assert.match(page.find("data-said").text, /password was deleted/);
});

test("removing what holds a secret says so to the server", async () => {
  answers["GET /v1/machines/m"] = () => [200, stored];
  answers["PATCH /v1/machines/m?clear=bmc.password%2CuserData"] = () => [200, stored];
  const page = await mount(EditMachine, { name: "m" });
  await page.type("bmc.driver", "");
  await page.type("dropUserData", true);
  await page.send(page.find("data-machine-form"), "submit");
  assert.deepEqual(sent[0].body, { bmc: null, userData: null });
});

test("a conflict names the fields and keeps what was typed", async () => {
  answers["GET /v1/machines/m"] = (n) => [200, n === 1 ? stored : { ...stored, version: 9, image: "debian-13", labels: { rack: "b7" } }];
  answers["PATCH /v1/machines/m"] = (n) => (n === 1 ? [412, { error: "version 9 is stored" }] : [200, { ...stored, version: 10 }]);
  const page = await mount(EditMachine, { name: "m" });
  await page.type("labels", "rack=a9");
  await page.type("bmc.user", "root");
  await page.send(page.find("data-machine-form"), "submit");
  assert.match(page.find("data-conflict").text, /image, labels\.rack.*kept as typed: labels\.rack/);
  assert.equal(page.find("id", "field-labels").attributes.value, "rack=a9");
  await page.send(page.find("data-machine-form"), "submit");
  assert.deepEqual(sent[1].body, { labels: { rack: "a9" }, bmc: { user: "root" } });
  assert.equal(sent[1].headers["If-Match"], '"9"');
  assert.ok(!page.find("data-conflict"));
});

const bonded = { ethernets: [{ name: "nic0", mac: "02:00:00:00:00:01" }], bonds: [{ name: "bond0", interfaces: ["nic0"], addresses: ["10.0.0.11/24"], search: [], mtu: 9000 }] };

test("YAML of a part of a document", () => {
  assert.equal(yamlOf(undefined), "");
  const lines = ["ethernets:", "  - name: nic0", '    mac: "02:00:00:00:00:01"', "bonds:", "  - name: bond0", "    interfaces:", "      - nic0", "    addresses:", "      - 10.0.0.11/24", "    search: []", "    mtu: 9000"];
  assert.equal(yamlOf(bonded), lines.join("\n") + "\n");
  for (const text of ["true", "10", "1e3", "a: b", "", "- x", "Ä", "10.0"]) assert.equal(yamlOf({ a: text }), `a: ${JSON.stringify(text)}\n`);
});

test("network and storage are edited as YAML, with problems at their lines", async () => {
  const machine = { ...stored, network: bonded };
  answers["GET /v1/machines/m"] = (n) => [200, n === 1 ? machine : { ...machine, version: 9, storage: { disks: [] } }];
  const refusals = [[400, { error: "x", problems: [{ field: "network.bonds[0].mode", line: 3, what: "invalid mode" }] }], [412, { error: "stale" }], [200, { ...machine, version: 10 }]];
  answers["PATCH /v1/machines/m?yaml=network"] = (n) => refusals[n - 1];
  const page = await mount(EditMachine, { name: "m" });
  assert.match(page.find("name", "network").attributes.value, /name: bond0/);
  await page.type("network", "bonds: [{mode: x}]");
  for (const seen of [/line 3 network\.bonds\[0\]\.mode: invalid mode/, /changed by another since this form was opened: storage/, /Saved/]) {
    await page.send(page.find("data-machine-form"), "submit");
    assert.match(page.find("data-machine-form").text, seen);
  }
  assert.deepEqual(sent.map((s) => [s.body, s.headers["If-Match"]]), ['"7"', '"7"', '"9"'].map((v) => [{ network: "bonds: [{mode: x}]" }, v]));
  assert.match(page.find("name", "network").attributes.value, /name: bond0/);
});

test("a machine is deleted by its name alone", async () => {
  answers["GET /v1/machines/m"] = () => [200, stored];
  answers["DELETE /v1/machines/m"] = () => [204];
  const page = await mount(EditMachine, { name: "m" });
  const form = page.find("data-by-name").all((n) => n.localName === "form")[0];
  await page.send(form, "submit");
  assert.ok(!asked.includes("DELETE /v1/machines/m"));
  await page.send(page.find("name", "confirm"), "input", { value: "m" });
  await page.send(form, "submit");
  assert.equal(location.hash, "#/");
});

test("an unknown machine is added with what was reported", async () => {
  answers["POST /v1/seen/02:00:00:00:00:99/accept"] = answers["POST /v1/seen/02%3A00%3A00%3A00%3A00%3A99/accept"] = (n) => (n > 1 ? [201, stored] : [400, { error: "x", problems: [{ field: "interfaces[0].address", what: "10.0.0.1 is the server" }] }]);
  const page = await mount(AddMachine, { store: { seen: [{ mac: "02:00:00:00:00:99", facts: { product: "<i>P</i>", disks: [{ size: 1 << 30, model: "D" }] } }] }, mac: "02:00:00:00:00:99" });
  assert.match(root.text, /<i>P<\/i> · 1\.0 GiB D/);
  await page.type("name", "new-1");
  await page.type("interfaces[0].address", "10.0.0.1");
  await page.send(page.find("data-accept"), "submit");
  assert.match(page.find("data-field", "interfaces[0].address").text, /is the server/);
  await page.send(page.find("data-accept"), "submit");
  assert.deepEqual(sent[1].body, { name: "new-1", address: "10.0.0.1" });
  assert.equal(location.hash, "#/machines/new-1/edit");
});
