// As much of a document as Preact needs, and a server that the test holds.
import { afterEach, beforeEach, mock } from "node:test";
import { h, options, render } from "preact";
import { runnerImport } from "vite";

export const load = async (name) => (await runnerImport(new URL(`../src/${name}`, import.meta.url).pathname, { logLevel: "silent" })).module;

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
  scrollIntoView() {}
  querySelector() {
    return null;
  }
  get text() {
    return this.data ?? this.childNodes.map((n) => n.text).join("");
  }
  all(fits) {
    return [...(fits(this) ? [this] : []), ...this.childNodes.flatMap((n) => n.all(fits))];
  }
}
Object.defineProperty(globalThis, "navigator", { value: {}, configurable: true });
globalThis.document = { createElementNS: (_, name) => new Element(name), createTextNode: (text) => new Element(undefined, text) };
globalThis.location = { hash: "" };
// Not by timers: one that a test leaves behind would stop the effects of the next test.
options.requestAnimationFrame = setImmediate;

export let answers; // by path: what the server answers, a function of the count of requests and of the request; [] by default
export let root; // what is shown
export let asked; // every request, as "METHOD path"
export let sent; // the bodies of the requests that had one, with their headers
globalThis.fetch = async (path, { method = "GET", body: given, headers } = {}) => {
  asked.push(`${method} ${path}`);
  if (given) sent.push({ method, path, headers, body: typeof given === "string" ? JSON.parse(given) : given });
  const f = answers[`${method} ${path}`] ?? answers[path];
  const [code, body, more] = f ? f(asked.filter((a) => a === `${method} ${path}`).length, given) : [200, { items: [] }];
  return new Response(body === undefined ? null : typeof body === "string" ? body : JSON.stringify(body), { status: code, headers: more });
};
export const times = (what) => asked.filter((a) => a === what).length;

beforeEach(() => {
  mock.timers.reset(); // after a test that failed
  asked = [];
  sent = [];
  location.hash = "";
  answers = {};
  mock.timers.enable({ apis: ["setTimeout", "setInterval", "Date"] });
});
/** Lets the clock go on by ms, and what came of it be drawn. */
export const pass = async (ms = 200) => {
  for (const step of [100, Math.max(0, ms - 200), 100]) {
    mock.timers.tick(step);
    for (let i = 0; i < 20; i++) await new Promise(setImmediate);
  }
};
afterEach(async () => {
  if (root) render(null, root);
  await pass();
  mock.timers.reset();
});
/** Shows a component; show draws it with other properties. */
export const mount = async (component, props) => {
  root = new Element("body");
  const show = async (p) => {
    render(h(component, p), root);
    await pass();
  };
  await show(props);
  const find = (name, value) => root.all((n) => name in n.attributes && (value === undefined || n.attributes[name] === value))[0];
  /** Types into a field of a form. */
  const type = (field, value) => {
    const node = find("id", `field-${field}`);
    return send(node, "input" in node.listeners ? "input" : "change", { value, checked: value });
  };
  const send = async (node, event, target = {}) => {
    node.listeners[event]?.call(node, { currentTarget: target, preventDefault() {} });
    await pass();
  };
  return { show, find, send, type, press: (choice) => send(find("data-choice", choice) ?? find("data-choice-sure", choice), "click") };
};

