// What the page asks of the server, and what it expects.
//
// REST (same origin, session cookie, JSON with the tags of package inventory):
//
//   GET  /v1/status                          Status
//   GET  /v1/machines/:name                  MachineView, whole
//   GET  /v1/machines/:name/workflow         Workflow, complete
//   GET  /v1/machines/:name/disks            {"items": [Disk]}, 404 = no agent has looked yet
//   GET  /v1/machines/:name/events?limit=n   {"items": [Event]}: only for a machine without a workflow
//   GET  /v1/workflows/:run/events?after=seq {"items": [Event]}, ascending by seq
//   GET  /v1/workflows/:run/logs?action=i&attempt=n
//                                            text/plain, i = index in actions, from 0; n = 0: the newest; 404 = nothing yet
//   GET  /v1/workflows/:run                  Workflow, complete
//   GET  /v1/workflows?machine=NAME&limit=n  {"items": [Workflow]}, the newest first
//   GET  /v1/phases?limit=n                  {"items": [PhaseTime]}: of the newest installations
//   GET  /v1/operations?limit=n              {"items": [Operation]}, the newest first
//   GET  /v1/operations/:run                 Operation
//   POST /v1/operations/:run/pause, resume   {}
//   GET  /v1/machines/:name/syslog?sort=-seq {"items": [SyslogLine]}, the newest first
//   GET  /v1/machines/:name/why              Explanation
//   GET  /v1/seen                            {"items": [Seen]}
//   POST /v1/seen/:mac/accept                {"name", "address"?, …}: makes it a machine
//   POST /v1/machines                        {"machines": [document]}, answers {"warnings"?}
//   POST /v1/apply                           {"files": [{"name", "text"}], "set", "forceConflicts", "dryRun"}: Application
//   PATCH /v1/machines/:name?clear=…&yaml=…  a merge patch, with If-Match; 412 = it was changed since
//   DELETE /v1/machines/:name
//   GET  /v1/images, /v1/templates           {"items": [Image]}, {"items": [Template]}
//   POST /v1/templates                       {"name"?, "source", "updated"?}; 412 = it was changed since
//   DELETE /v1/templates/:name
//   POST /v1/templates/:name/render          {"machine", "source"}: Rendering
//   GET, POST /v1/tokens; DELETE /v1/tokens/:name; POST /v1/tokens/:name/enable
//   POST /v1/machines/:name/power            {"action"}: {"job"}
//   POST /v1/bmc/check                       {"machine"}: BMCCheck
//   GET  /v1/bmc/jobs/:machine/:job          {"state", "message"?, "ended"?}
//   POST /v1/machines/:name/boot-device      {"device", "persistent", "efiBoot"}: {"job"}
//   GET  /v1/images?unused=true              those that nothing names
//   GET  /v1/image-catalog                   {"images": [Offered]}
//   POST /v1/images                          {"name", "url" | "catalog": true, …}: answers when the file is there
//   HEAD /v1/images/:name/upload             Upload-Offset, Upload-Checked: how far an upload or a fetch is
//   PUT  /v1/images/:name?content&offset&size  bytes from offset on
//   POST /v1/images/:name/verify             {"ok", "message"?}
//   DELETE /v1/images/:name?force            409 says who names it
//   POST /login                              a form with "token"; 401 = it opens no session
//   POST /v1/workflows/:run/decide           {"question", "choice", "diskSelector"?}
//   POST /v1/workflows/:run/retry            {"from": "failed-step" | "start"}
//   POST /v1/workflows/:run/cancel           {"reason"}
//   POST /v1/workflows/:run/powered-on       {}
//   POST /v1/machines/:name/provision        {"template"?, "image"?}
//   POST /v1/machines/:name/reprovision      {"template"?, "image"?}
//   POST /v1/machines/:name/decommission     {}
//   POST /v1/machines/:name/release          {}
//   POST /v1/temporal-ui-links               {"url"}: opens Temporal's UI, once
//   POST /v1/operations/:run/decide          {"question", "choice"}
//   POST /v1/operations/:run/cancel          {}
//   POST /v1/operations/:run/retry           only for machines that are installed together: {"run"} of the new operation
//   POST /v1/operations/:run/pause, /resume  only for the installation of many
//   POST /v1/provision?dryRun                {"name", "machines" | "selector", …}: {"run", "machines" of a dry run}
//
// Errors are {"error", "next"?, "problems"?}. 401 anywhere means: not logged in.
//
// GET /v1/events/stream is read with EventSource (text/event-stream). Each
// frame is `id: <version>`, `event: <name>`, `data: <one line of JSON>`:
//
//   caller    Caller: the first event.
//   machines  {"items": [MachineView]}: the second event, all machines.
//   machine   MachineView: at each change. {"name": …, "deleted": true} when it is gone.
//   operation Operation, whole: at each change of its record. {"run": …, "deleted": true} when it is too old to be shown.
//   status    Status: every 5 s, which is the server's sign of life.
//
// The MachineViews of the stream hold what the table shows; the panel asks for the machine that it shows. A stream that
// opens again begins with everything. Unknown events and unknown fields are ignored. Timestamps are RFC 3339; null lists
// count as empty.

import type { Doc } from "./document";
import { clean, shown } from "./text";
import type {
  Application,
  BMCCheck,
  Disk,
  Event,
  Explanation,
  Image,
  MachineView,
  Offered,
  Operation,
  PhaseTime,
  Rendering,
  Seen,
  Selector,
  Status,
  SyslogLine,
  Template,
  Token,
  Workflow,
} from "./types";

/** What the server finds wrong with an input: with a field, or with a line of a text. */
export interface Problem {
  field?: string;
  line?: number;
  what: string;
  remedy?: string;
}

/** An answer that is not a success: status 0 means that there was none. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly next?: string,
    readonly problems: readonly Problem[] = [],
  ) {
    super(message);
  }
}

// Characters that clean would remove, as JSON: the character or its escape. A false match
// only costs time.
const suspicious = /[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]|\\(?:u(?:00[0189]|007f|061c|20[0-6]|feff)|[bfr])/i;

/** Parses JSON whose every string is cleaned on the way in. */
export function parse<T>(text: string): T {
  if (!suspicious.test(text)) return JSON.parse(text) as T;
  return JSON.parse(text, (_, v: unknown) => (typeof v === "string" ? clean(v) : v)) as T;
}

/** What a request has beside its JSON: headers, other content, and how long an answer may take, ms. */
interface More {
  headers?: Record<string, string>;
  content?: Blob;
  timeout?: number;
}

/** The longest that a browser can wait. */
const unlimited = 2 ** 31 - 1;

async function request(method: string, path: string, body?: unknown, { headers = {}, content, timeout = 15_000 }: More = {}): Promise<{ text: string; headers: Headers }> {
  let r: Response;
  let text: string;
  try {
    r = await fetch(path, {
      method,
      credentials: "same-origin",
      cache: "no-store",
      signal: AbortSignal.timeout(timeout),
      headers: { ...(body !== undefined && { "Content-Type": "application/json" }), ...headers },
      body: content ?? (body === undefined ? null : JSON.stringify(body)),
    });
    text = await r.text();
  } catch (e) {
    throw new Refused(0, `no answer from the server (${e instanceof Error ? e.message : String(e)})`);
  }
  if (r.ok) return { text, headers: r.headers };
  let said: { error?: string; next?: string; problems?: Problem[] | null } = {};
  try {
    said = parse(text);
  } catch {
    said = { error: clean(text).slice(0, 300) };
  }
  const problems = (said.problems ?? []).map((p) => (p.field ? `${p.field}: ${p.what}` : p.what));
  const message = [said.error || `the server answered ${r.status}`, ...problems.filter((p) => !said.error?.includes(p))].join("\n");
  throw new Refused(r.status, message, said.next, said.problems ?? []);
}

const ask = async (method: string, path: string, body?: unknown, more?: More) => (await request(method, path, body, more)).text;

/** Returns what follows a path: the parameters that have a value. */
const query = (of: Record<string, string | number | boolean | undefined>) => {
  const given = Object.entries(of).filter(([, v]) => v !== undefined && v !== "" && v !== false);
  return given.length > 0 ? "?" + new URLSearchParams(given.map(([k, v]) => [k, String(v)])).toString() : "";
};

const path = (...parts: string[]) => "/v1/" + parts.map(encodeURIComponent).join("/");

/** How a file becomes an image; each may be left out. */
export interface UploadOptions {
  sha256?: string | undefined;
  use?: string | undefined;
  asIs?: boolean | undefined;
  replace?: boolean | undefined;
}

export const api = {
  status: async () => parse<Status>(await ask("GET", "/v1/status")),
  machine: async (name: string) => parse<MachineView>(await ask("GET", path("machines", name))),
  disks: async (machine: string) => parse<{ items?: Disk[] | null }>(await ask("GET", path("machines", machine, "disks"))).items ?? [],
  unusedImages: async () => parse<{ items?: Image[] | null }>(await ask("GET", "/v1/images?unused=true")).items ?? [],
  catalog: async () => parse<{ images?: Offered[] | null }>(await ask("GET", "/v1/image-catalog")).images ?? [],
  fetchImage: (image: Doc) => ask("POST", path("images"), image, { timeout: unlimited }),
  /** How many bytes of an upload are there, and how many of them were checked. */
  received: async (image: string, of: { content?: string | undefined; sha256?: string | undefined }) => {
    const { headers } = await request("HEAD", path("images", image, "upload") + query(of));
    return { bytes: Number(headers.get("Upload-Offset") ?? 0), checked: Number(headers.get("Upload-Checked") ?? 0) };
  },
  /** Sends bytes of an image; after the last ones the server reads the whole file. */
  upload: (image: string, of: UploadOptions & { content: string; offset: number; size: number }, bytes: Blob) =>
    ask("PUT", path("images", image) + query({ ...of }), undefined, { content: bytes, timeout: of.offset + bytes.size < of.size ? 180_000 : unlimited }),
  verifyImage: async (name: string) => parse<{ ok: boolean; message?: string }>(await ask("POST", path("images", name, "verify"), undefined, { timeout: unlimited })),
  deleteImage: (name: string, force: boolean) => ask("DELETE", path("images", name) + query({ force })),
  images: async () => parse<{ items?: Image[] | null }>(await ask("GET", "/v1/images")).items ?? [],
  templates: async () => parse<{ items?: Template[] | null }>(await ask("GET", "/v1/templates")).items ?? [],
  /** The names of the images, or of the templates. */
  names: async (what: "images" | "templates") => (parse<{ items?: { name: string }[] | null }>(await ask("GET", path(what))).items ?? []).map((x) => x.name),
  /** A machine as it is, with what this page does not know of. */
  document: async (name: string) => parse<Doc>(await ask("GET", path("machines", name))),
  addMachine: async (doc: Doc) => parse<{ warnings?: string[] | null }>(await ask("POST", path("machines"), { machines: [doc] })).warnings ?? [],
  /** Stores what files describe, or only says what would be stored. */
  apply: async (documents: { files: { name: string; text: string }[]; set: string; forceConflicts: boolean; dryRun: boolean }) =>
    parse<Application>(await ask("POST", path("apply"), documents, { timeout: 180_000 })),
  /** Changes a machine; the fields of yaml are texts in the patch. */
  changeMachine: async (name: string, version: number, patch: Doc, clear: string[], yaml: string[]) =>
    parse<Doc>(await ask("PATCH", path("machines", name) + query({ clear: clear.join(","), yaml: yaml.join(",") }), patch, { headers: { "Content-Type": "application/merge-patch+json", "If-Match": `"${version}"` } })),
  deleteMachine: (name: string) => ask("DELETE", path("machines", name)),
  accept: (mac: string, nic: Doc) => ask("POST", path("seen", mac, "accept"), nic),
  /** Stores a template; updated is when the one that it replaces was stored. */
  putTemplate: async (name: string | undefined, source: string, updated: string | undefined) => parse<Template>(await ask("POST", path("templates"), { name, source, updated })),
  deleteTemplate: (name: string) => ask("DELETE", path("templates", name)),
  render: async (name: string, machine: string, source: string) => parse<Rendering>(await ask("POST", path("templates", name, "render"), { machine, source })),
  tokens: async () => parse<{ items?: Token[] | null }>(await ask("GET", path("tokens"))).items ?? [],
  makeToken: async (token: Doc) => parse<Token & { token: string }>(await ask("POST", path("tokens"), token)),
  revokeToken: (name: string) => ask("DELETE", path("tokens", name)),
  enableToken: (name: string) => ask("POST", path("tokens", name, "enable")),
  /** The names of the machines that would be installed, in their order. */
  previewMany: async (input: Doc) => parse<{ machines?: string[] | null }>(await ask("POST", "/v1/provision?dryRun=true", input)).machines ?? [],
  /** Starts their installation, and returns its run. */
  installMany: async (input: Doc) => parse<{ run: string }>(await ask("POST", "/v1/provision", input)).run,
  pauseOperation: (run: string, pause: boolean) => ask("POST", path("operations", run, pause ? "pause" : "resume")),
  /** Logs in to the BMC of a machine, and returns what it reports. */
  checkBMC: async (machine: string) => parse<BMCCheck>(await ask("POST", "/v1/bmc/check", { machine }, { timeout: 60_000 })),
  /** These two start a job, and return its name. */
  power: async (machine: string, action: string) => parse<{ job: string }>(await ask("POST", path("machines", machine, "power"), { action })).job,
  bootDevice: async (machine: string, device: string, how: { persistent: boolean; efiBoot: boolean }) =>
    parse<{ job: string }>(await ask("POST", path("machines", machine, "boot-device"), { device, ...how })).job,
  bmcJob: async (machine: string, job: string) => parse<{ state: string; message?: string; ended?: string }>(await ask("GET", path("bmc", "jobs", machine, job))),
  seen: async () => parse<{ items?: Seen[] | null }>(await ask("GET", "/v1/seen")).items ?? [],
  workflow: async (machine: string) => parse<Workflow>(await ask("GET", path("machines", machine, "workflow"))),
  runEvents: async (run: string, after: number) =>
    parse<{ items?: Event[] | null }>(await ask("GET", `${path("workflows", run, "events")}?after=${after}`)).items ?? [],
  machineEvents: async (machine: string, after: number) =>
    parse<{ items?: Event[] | null }>(await ask("GET", `${path("machines", machine, "events")}?after=${after}&limit=200`)).items ?? [],
  log: async (run: string, action: number, attempt: number) => shown(await ask("GET", `${path("workflows", run, "logs")}?action=${action}&attempt=${attempt}`)),
  run: async (run: string) => parse<Workflow>(await ask("GET", path("workflows", run))),
  runs: async (machine: string) => parse<{ items?: Workflow[] | null }>(await ask("GET", `/v1/workflows?machine=${encodeURIComponent(machine)}&limit=50`)).items ?? [],
  phaseTimes: async (limit: number) => parse<{ items?: PhaseTime[] | null }>(await ask("GET", `/v1/phases?limit=${limit}`)).items ?? [],
  newestRuns: async (limit: number) => parse<{ items?: Workflow[] | null }>(await ask("GET", `/v1/workflows?limit=${limit}`)).items ?? [],
  operations: async () => parse<{ items?: Operation[] | null }>(await ask("GET", "/v1/operations?limit=100")).items ?? [],
  syslog: async (machine: string) => parse<{ items?: SyslogLine[] | null }>(await ask("GET", `${path("machines", machine, "syslog")}?sort=-seq&limit=200`)).items ?? [],
  why: async (machine: string) => parse<Explanation>(await ask("GET", path("machines", machine, "why"))),
  decide: (run: string, question: string, choice: string, diskSelector?: Selector) =>
    ask("POST", path("workflows", run, "decide"), { question, choice, diskSelector }),
  retry: (run: string, from: "failed-step" | "start") => ask("POST", path("workflows", run, "retry"), { from }),
  cancel: (run: string) => ask("POST", path("workflows", run, "cancel"), { reason: "cancelled in the page" }),
  decideOperation: (run: string, question: string, choice: string) => ask("POST", path("operations", run, "decide"), { question, choice }),
  retryOperation: async (run: string) => parse<{ run: string }>(await ask("POST", path("operations", run, "retry"), {})).run,
  cancelOperation: (run: string) => ask("POST", path("operations", run, "cancel"), {}),
  install: (machine: string, how: "provision" | "reprovision", what: { template?: string; image?: string }) => ask("POST", path("machines", machine, how), what),
  decommission: (machine: string) => ask("POST", path("machines", machine, "decommission"), {}),
  release: (machine: string) => ask("POST", path("machines", machine, "release"), {}),
  temporalUI: async () => parse<{ url: string }>(await ask("POST", "/v1/temporal-ui-links", {})).url,
  poweredOn: (run: string) => ask("POST", path("workflows", run, "powered-on"), {}),
};

/** Opens a session with a token; false: the token opens no session. */
export async function login(token: string): Promise<boolean> {
  // Not followed: the redirect leads to this page.
  const r = await fetch("/login", { method: "POST", body: new URLSearchParams({ token }), redirect: "manual" });
  return r.type === "opaqueredirect";
}

export interface Listener {
  open(): void;
  /** The stream ended or could not be had; it is tried again automatically. */
  lost(): void;
  event(name: string, data: string): void;
}

const names = ["caller", "machines", "machine", "operation", "status"];

/**
 * Keeps a stream open until closed: after a loss it tries again, at once when
 * told to, otherwise with growing pauses of at most 10 s. EventSource alone
 * gives up for ever on an answer that is not 200.
 */
export class Stream {
  private source?: EventSource;
  private timer?: ReturnType<typeof setTimeout>;
  private pause = 500;
  private closed = false;
  /** When the next attempt is due, ms; 0 while connected. */
  due = 0;
  /** When the newest attempt began, ms. */
  began = 0;

  constructor(private readonly to: Listener) {
    this.connect();
  }

  /** Tries now. */
  again(): void {
    if (this.closed) return;
    this.pause = 500;
    this.connect();
  }

  close(): void {
    this.closed = true;
    this.drop();
  }

  private drop(): void {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = undefined;
  }

  private connect(): void {
    this.drop();
    this.due = 0;
    this.began = Date.now();
    const s = new EventSource("/v1/events/stream");
    this.source = s;
    s.onopen = () => {
      this.pause = 500;
      this.to.open();
    };
    s.onerror = () => {
      if (this.source !== s) return;
      this.drop();
      this.due = Date.now() + this.pause;
      this.timer = setTimeout(() => this.connect(), this.pause);
      this.pause = Math.min(this.pause * 2, 10_000);
      this.to.lost();
    };
    for (const n of names) s.addEventListener(n, (e) => this.to.event(n, (e as MessageEvent<string>).data));
  }
}
