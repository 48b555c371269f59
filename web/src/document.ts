// A machine's document as the page edits it: the texts of a form, and JSON merge patches (RFC 7396).

export type Json = null | boolean | number | string | Json[] | Doc;
export interface Doc {
  [field: string]: Json | undefined;
}

const isDoc = (v: Json | undefined): v is Doc => typeof v === "object" && v !== null && !Array.isArray(v);
const same = (a: unknown, b: unknown) => JSON.stringify(a) === JSON.stringify(b);

/** Returns the merge patch that makes b of a. */
export function diff(a: Doc, b: Doc): Doc {
  const out: Doc = {};
  for (const k of Object.keys({ ...a, ...b })) {
    const [from, to] = [a[k], b[k]];
    if (same(from, to)) continue;
    out[k] = to === undefined ? null : isDoc(from) && isDoc(to) ? diff(from, to) : to;
  }
  return out;
}

/** Returns a as the merge patch changes it. */
export function merge(a: Doc, patch: Doc): Doc {
  const out: Doc = { ...a };
  for (const [k, v] of Object.entries(patch)) {
    if (v === null || v === undefined) delete out[k];
    else out[k] = isDoc(v) ? merge(isDoc(out[k]) ? (out[k] as Doc) : {}, v) : v;
  }
  return out;
}

/** Returns the fields that a merge patch changes, such as bmc.host. */
export function fields(patch: Doc, prefix = ""): string[] {
  return Object.entries(patch).flatMap(([k, v]) => (isDoc(v) && Object.keys(v).length > 0 ? fields(v, `${prefix}${k}.`) : [prefix + k]));
}

/** Whether one of two fields holds the other, or they are the same. */
const overlap = (a: string, b: string) => `${a}.`.startsWith(`${b}.`) || `${b}.`.startsWith(`${a}.`);

/** Returns the fields of mine that theirs changes too. */
export const both = (mine: string[], theirs: string[]) => mine.filter((m) => theirs.some((t) => overlap(m, t)));

/** How the text of a field becomes JSON. */
type Kind = "text" | "number" | "flag" | "lines" | "pairs";

const kinds: Record<string, Kind> = {
  name: "text",
  template: "text",
  image: "text",
  labels: "pairs",
  sshKeys: "lines",
  "diskSelector.serial": "text",
  "diskSelector.wwn": "text",
  "diskSelector.byID": "text",
};

const bmcKinds: Record<string, Kind> = {
  driver: "text",
  host: "text",
  port: "number",
  user: "text",
  consumerURL: "text",
  command: "text",
  mac: "text",
  fingerprint: "text",
  insecureTLS: "flag",
};

const nicKinds: Record<string, Kind> = {
  mac: "text",
  address: "text",
  netmask: "text",
  gateway: "text",
  hostname: "text",
  nameservers: "lines",
  vlan: "number",
  arch: "text",
  uefi: "flag",
  disableNetboot: "flag",
};

/** The fields of each driver beside the driver itself; password is a secret of its own. */
export const driverFields: Record<string, string[]> = {
  "": [],
  manual: [],
  ipmi: ["host", "port", "user", "password"],
  redfish: ["host", "port", "user", "password", "fingerprint", "insecureTLS"],
  amt: ["host", "port", "user", "password", "fingerprint", "insecureTLS"],
  wol: ["mac", "host", "port"],
  rpc: ["consumerURL", "host", "password", "fingerprint", "insecureTLS"],
  exec: ["command"],
};

export type Texts = Record<string, string>;

/** A machine as a form holds it. Of interfaces, each keeps the document that it was. */
export interface Draft {
  texts: Texts;
  nics: { was: Doc; texts: Texts }[];
}

function textOf(v: Json | undefined, kind: Kind): string {
  if (v === undefined || v === null) return "";
  if (kind === "pairs") return Object.entries(v as Doc).map(([k, x]) => `${k}=${String(x)}`).join("\n");
  if (kind === "lines") return (v as Json[]).map(String).join("\n");
  return v === false ? "" : String(v);
}

function jsonOf(text: string, kind: Kind): Json | undefined {
  const t = text.trim();
  if (t === "") return undefined;
  const lines = t.split(/[\n]+/).map((x) => x.trim()).filter(Boolean);
  switch (kind) {
    case "flag":
      return true;
    case "number":
      return /^\d+$/.test(t) ? Number(t) : t;
    case "lines":
      return lines;
    case "pairs":
      return Object.fromEntries(lines.map((l) => [l.split("=", 1)[0]!.trim(), l.slice(l.indexOf("=") + 1 || l.length).trim()]));
    default:
      return t;
  }
}

// A text that YAML reads as itself without quotes: a word, an address, a path.
const plain = /^(?!(?:true|false|null|yes|no|on|off|y|n)$)(?:[a-z/][\w./+-]*|\d+(?:\.\d+){3}(?:\/\d+)?)$/i;

/** Returns a value as YAML. */
export function yamlOf(v: Json | undefined, indent = ""): string {
  if (v === null || v === undefined) return "";
  if (Array.isArray(v)) return v.map((x) => `${indent}- ${yamlOf(x, `${indent}  `).trimStart()}`).join("");
  if (!isDoc(v)) return `${typeof v === "string" && !plain.test(v) ? JSON.stringify(v) : String(v)}\n`;
  return Object.entries(v)
    .map(([k, x]) => `${indent}${k}:${typeof x === "object" && x !== null && Object.keys(x).length > 0 ? `\n${yamlOf(x, `${indent}  `)}` : ` ${yamlOf(x).trim() || (Array.isArray(x) ? "[]" : isDoc(x) ? "{}" : "null")}\n`}`)
    .join("");
}

function set(doc: Doc, path: string, v: Json | undefined): void {
  const [head, ...rest] = path.split(".");
  if (rest.length === 0) {
    if (v === undefined) delete doc[head!];
    else doc[head!] = v;
    return;
  }
  const inner: Doc = isDoc(doc[head!]) ? { ...(doc[head!] as Doc) } : {};
  set(inner, rest.join("."), v);
  if (Object.keys(inner).length === 0) delete doc[head!];
  else doc[head!] = inner;
}

const get = (doc: Doc, path: string) => path.split(".").reduce<Json | undefined>((v, k) => (isDoc(v) ? v[k] : undefined), doc);

/** Returns the draft of a document. */
export function draftOf(doc: Doc): Draft {
  const texts: Texts = {};
  for (const [f, kind] of Object.entries(kinds)) texts[f] = textOf(get(doc, f), kind);
  for (const [f, kind] of Object.entries(bmcKinds)) texts[`bmc.${f}`] = textOf(get(doc, `bmc.${f}`), kind);
  const nics = ((doc.interfaces as Doc[] | undefined) ?? []).map((was) => ({ was, texts: Object.fromEntries(Object.entries(nicKinds).map(([f, kind]) => [f, textOf(was[f], kind)])) }));
  return { texts, nics };
}

/** Returns the IPv4 netmask with so many bits. */
export const netmask = (bits: number) => [0, 8, 16, 24].map((at) => 256 - 2 ** (8 - Math.min(8, Math.max(0, bits - at)))).join(".");

/** Returns base with what the draft says; what the form does not show stays. Secrets are not in it. */
export function docOf(draft: Draft, base: Doc): Doc {
  const doc: Doc = { ...base };
  for (const [f, kind] of Object.entries(kinds)) set(doc, f, jsonOf(draft.texts[f] ?? "", kind));

  const driver = draft.texts["bmc.driver"] ?? "";
  // Other drivers have other fields.
  const bmc: Doc = get(base, "bmc.driver") === driver ? { ...(base.bmc as Doc) } : {};
  for (const [f, kind] of Object.entries(bmcKinds)) set(bmc, f, f === "driver" || driverFields[driver]?.includes(f) ? jsonOf(draft.texts[`bmc.${f}`] ?? "", kind) : undefined);
  set(doc, "bmc", driver ? bmc : undefined);

  doc.interfaces = draft.nics.map(({ was, texts }) => {
    const nic: Doc = { ...was };
    for (const [f, kind] of Object.entries(nicKinds)) set(nic, f, jsonOf(texts[f] ?? "", kind));
    const prefix = /^([\d.]+)\/(\d|[12]\d|3[0-2])$/.exec(String(nic.address ?? ""));
    return prefix ? { ...nic, address: prefix[1]!, netmask: netmask(Number(prefix[2])) } : nic;
  });
  return doc;
}

/** Top-level fields of a machine that only the server sets, or that are not part of its document. */
const ofServer = ["version", "created", "updated", "standing", "hasUserData", "hasVendorData", "netboot", "workflow", "installed", "lastSeen", "firmware", "warnings"];

/** Returns the document of a machine as the API shows it. */
export function documentOf(machine: Doc): Doc {
  const doc: Doc = { ...machine };
  for (const f of ofServer) delete doc[f];
  if (isDoc(doc.bmc)) {
    doc.bmc = { ...doc.bmc };
    delete doc.bmc.hasPassword;
  }
  return doc;
}
