// Tests of images: uploads over a connection that breaks, and what is asked before one is deleted.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { answers, asked, load, mount, pass, root, sent, times } from "./dom.mjs";

const { sha256 } = await load("sha256.ts");
const { Transfers } = await load("transfers.ts");
const { Images, nameOf } = await load("images.tsx");

test("the digest is SHA-256", async () => {
  for (const size of [0, 1, 55, 56, 63, 64, 65, 119, 120, (4 << 20) - 1, 4 << 20, (4 << 20) + 1]) {
    const bytes = Buffer.alloc(size, 7);
    assert.equal(await sha256(new Blob([bytes])), createHash("sha256").update(bytes).digest("hex"), String(size));
  }
});

test("the name of an image follows its file", () => {
  assert.deepEqual(["Debian-12.qcow2", "a b.raw.zst", "../..", "<b>.img"].map(nameOf), ["debian-12", "a-b", "", "b"]);
});

/** A server that keeps the bytes of an upload, and breaks off at some requests. */
const receiver = (breaks) => {
  const got = { bytes: new Uint8Array(), puts: [], complete: false };
  globalThis.fetch = async (path, { method, body }) => {
    const q = new URL(path, "http://x").searchParams;
    if (method === "HEAD") return new Response(null, { headers: { "Upload-Offset": String(q.get("content") ? got.bytes.length : 0) } });
    const at = Number(q.get("offset"));
    const fate = breaks[got.puts.length];
    got.puts.push(at);
    const bytes = new Uint8Array(await body.arrayBuffer());
    if (fate?.status) return new Response(JSON.stringify({ error: fate.error }), { status: fate.status });
    assert.equal(at, got.bytes.length);
    const kept = bytes.slice(0, fate?.keep ?? bytes.length);
    got.bytes = concat(got.bytes, kept);
    if (fate) throw new TypeError("network error");
    got.complete = got.bytes.length === Number(q.get("size"));
    return new Response("{}", { status: got.complete ? 201 : 202 });
  };
  return got;
};
const concat = (a, b) => {
  const out = new Uint8Array(a.length + b.length);
  out.set(a);
  out.set(b, a.length);
  return out;
};
const settle = async (promise) => {
  let result;
  promise.then(() => (result = "done"), (e) => (result = e.message));
  for (let i = 0; i < 200 && result === undefined; i++) await pass(40_000);
  return result;
};

test("an upload that breaks off goes on where the server is", async () => {
  const was = globalThis.fetch;
  try {
    const file = new Blob([Buffer.alloc((20 << 20) + 5, 9)]);
    // In the second part after 3 MiB; then the server has not noticed; at the end after the last byte.
    const got = receiver({ 1: { keep: 3 << 20 }, 2: { status: 409, error: "another upload is under way" }, 4: { keep: (1 << 20) + 5 } });
    const seen = new Set();
    const transfers = new Transfers(() => seen.add(transfers.all.get("debian").state));
    assert.equal(await settle(transfers.upload("debian", file, {})), "done");
    assert.ok(got.complete);
    assert.equal(Buffer.compare(Buffer.from(got.bytes), Buffer.from(await file.arrayBuffer())), 0);
    assert.deepEqual(got.puts, [0, 8 << 20, 11 << 20, 11 << 20, 19 << 20, (20 << 20) + 5]);
    for (const state of ["reading", "sending", "waiting", "done"]) assert.ok(seen.has(state), state);
  } finally {
    globalThis.fetch = was;
  }
});

test("what the server refuses is not sent again by itself", async () => {
  const was = globalThis.fetch;
  try {
    const got = receiver({ 0: { status: 409, error: "image is used by machine a" } });
    const transfers = new Transfers(() => undefined);
    assert.match(await settle(transfers.upload("debian", new Blob(["x"]), {})), /used by machine a/);
    assert.deepEqual(got.puts, [0]);
    assert.equal(transfers.busy, false);
    assert.equal(await settle(transfers.all.get("debian").again()), "done");
  } finally {
    globalThis.fetch = was;
  }
});

const images = { items: [{ name: "debian", size: 5, sha256: "ab", format: "raw", contents: "<b>GPT</b>" }, { name: "free", size: 5, sha256: "cd", format: "raw" }] };
const store = (more) => ({ transfers: new Transfers(() => undefined), idle: false, ...more });
const at = (view, name = "") => ({ view, name, act: "" });

test("an image is deleted by its name, and what names it is shown first", async () => {
  answers["GET /v1/images"] = () => [200, images];
  answers["GET /v1/images?unused=true"] = () => [200, { items: [images.items[1]] }];
  answers["DELETE /v1/images/debian"] = () => [409, { error: "image is used by 2 machines (<i>a</i>, b)" }];
  answers["DELETE /v1/images/debian?force=true"] = () => [204];
  const page = await mount(Images, { store: store(), place: at("images", "debian"), now: 0 });
  assert.match(page.find("data-image", "free").text, /nothing/);
  assert.match(page.find("data-image", "debian").text, /<b>GPT<\/b>.*something/);
  const form = page.find("data-by-name").all((n) => n.localName === "form")[0];
  await page.send(form, "submit");
  assert.equal(times("DELETE /v1/images/debian"), 0);
  await page.send(page.find("name", "confirm"), "input", { value: "debian" });
  await page.send(form, "submit");
  assert.match(form.text, /2 machines \(<i>a<\/i>, b\)/);
  await page.send(page.find("name", "anyway"), "change", { checked: true });
  await page.send(form, "submit");
  assert.ok(asked.includes("DELETE /v1/images/debian?force=true"));
});

test("an image of the catalogue is fetched by its name", async () => {
  answers["GET /v1/image-catalog"] = () => [200, { images: [{ name: "debian-13", about: "Debian 13", url: "https://x", user: "debian" }] }];
  answers["POST /v1/images"] = (n) => (n > 1 ? [201, {}] : [400, { error: "url: no", problems: [{ field: "catalog", what: "unreachable" }] }]);
  const page = await mount(Images, { store: store(), place: at("new", "image"), now: 0 });
  await page.type("name", "debian-13");
  assert.match(root.text, /Debian 13; log in as debian/);
  await page.send(page.find("data-image-form"), "submit");
  assert.deepEqual(sent[0].body, { name: "debian-13", catalog: true });
  assert.match(root.text, /unreachable/);
});
