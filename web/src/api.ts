// What the page asks of the server, and what it expects.
//
// REST (same origin, session cookie, JSON with the tags of package inventory):
//
//   GET  /v1/status                          Status
//   GET  /v1/machines                        {"items": [MachineView]}
//   GET  /v1/machines/:name/workflow         Workflow, complete
//   GET  /v1/machines/:name/events?limit=n   {"items": [Event]}: only for a machine without a workflow
//   GET  /v1/workflows/:run/events?after=seq {"items": [Event]}, ascending by seq
//   GET  /v1/workflows/:run/logs?action=i    text/plain, i = index in actions, from 0; 404 = nothing yet
//   GET  /v1/seen                            {"items": [Seen]}
//   POST /v1/workflows/:run/decide           {"question", "choice", "diskSelector"?}
//   POST /v1/workflows/:run/retry            {"from": "failed-step" | "start"}
//   POST /v1/workflows/:run/cancel           {"reason"}
//   POST /v1/workflows/:run/powered-on       {}
//   POST /v1/machines/:name/reprovision      {}
//   POST /v1/machines/:name/decommission     {}
//   POST /v1/machines/:name/release          {}
//   GET  /v1/operations?limit=n              {"items": [Operation]}, the newest first
//   POST /v1/operations/:run/decide          {"question", "choice"}
//   POST /v1/operations/:run/cancel          {}
//
// Errors are {"error", "next"?, "problems"?}. 401 anywhere means: not logged in.
//
// GET /v1/events/stream is read with EventSource (text/event-stream). Each
// frame is `id: <seq>`, `event: <name>`, `data: <one line of JSON>`:
//
//   machine   MachineView, whole: at registration, on any change of machine,
//             grant, lastSeen or lastEvent. {"name": …, "deleted": true} when it is gone.
//   workflow  Workflow, whole, with actions: at each change of its record.
//   progress  Workflow, whole, where the running action's done and total are
//             fresh (about once a second); a Workflow of which only run,
//             machine and actions are set is enough.
//   operation Operation, whole: at each change of its record. {"run": …, "deleted": true} when it is too old to be shown.
//   status    Status: on change, and at least every 15 s as a sign of life
//             (the page asks /v1/status itself after 30 s of silence).
//
// The page loads everything afresh whenever the stream opens, so events
// missed in between need not be sent again, and no event needs to be sent on
// opening. Unknown events and unknown fields are ignored. Timestamps are RFC
// 3339; null lists count as empty.
//
// MachineView may carry "lastEvent" (an Event, the newest of the machine); if
// it does not, the page asks for the events of open runs after their changes.

import { clean } from "./text";

export interface Status {
  version?: string;
  uptimeSeconds?: number;
  temporal?: { ready: boolean; address?: string; ui?: string; error?: string };
  netboot?: { interfaces?: unknown[] | null; relays?: string[]; off?: boolean; message?: string };
  machines?: number;
  openWorkflows?: number;
  secrets?: string;
  time?: string;
}

export interface Netboot {
  allowPXE: boolean;
  allowWorkflow: boolean;
  run?: string;
  epoch?: number;
  boot?: number;
  bootsLeft?: number;
  until?: string;
}

export interface Interface {
  mac: string;
  address?: string;
  hostname?: string;
  arch?: string;
  uefi?: boolean;
  vlan?: number;
  disableNetboot?: boolean;
}

export interface MachineView {
  name: string;
  deleted?: boolean;
  labels?: Record<string, string> | null;
  interfaces?: Interface[] | null;
  bmc?: { driver: string; host?: string; port?: number } | null;
  template?: string;
  image?: string;
  netboot?: Netboot;
  /** What a decommissioning has left; none while the machine is in service. */
  standing?: { state: string; reason?: string; run?: string; since?: string } | null;
  protectedDisks?: { serial?: string; wwn?: string }[] | null;
  workflow?: Workflow | null;
  lastSeen?: string;
  lastEvent?: Event | null;
}

export interface Disk {
  path: string;
  serial?: string;
  wwn?: string;
  model?: string;
  byID?: string[] | null;
  size: number;
  rotational?: boolean;
  removable?: boolean;
  readOnly?: boolean;
  transport?: string;
  signatures?: string[] | null;
  written?: string;
  blank?: boolean;
}

export interface Selector {
  serial?: string;
  wwn?: string;
  byID?: string;
  model?: string;
}

export interface Question {
  id: string;
  text: string;
  choices?: string[] | null;
  disks?: Disk[] | null;
  since?: string;
}

export interface Action {
  name: string;
  task?: string;
  image?: string;
  state: string;
  attempt?: number;
  startedAt?: string;
  seconds?: number;
  message?: string;
  timeout?: number;
  done?: number;
  total?: number;
}

export interface Workflow {
  run: string;
  id?: string;
  type?: string;
  machine: string;
  template?: string;
  image?: string;
  state?: string;
  phase?: string;
  message?: string;
  next?: string;
  question?: Question | null;
  actions?: Action[] | null;
  disk?: Disk | null;
  evidence?: string;
  installer?: boolean;
  started?: string;
  ended?: string;
  updated?: string;
}

/** One row of an operation's table. */
export interface OperationStep {
  name: string;
  machine?: string;
  does: string;
  /** What it waits for before the next step begins. */
  waits?: string;
  /** What taking it back does, or "none: " and why nothing can. */
  undo: string;
  state: string;
  /** The machine's run that it has started. */
  run?: string;
  message?: string;
  /** Nanoseconds. */
  budget?: number;
  since?: string;
  ended?: string;
  /** Since when an operator is awaited. */
  asked?: string;
  /** Nanoseconds for which an operator was awaited before. */
  waited?: number;
}

/** A Genesis, a migration or a recovery. */
export interface Operation {
  run: string;
  deleted?: boolean;
  id: string;
  type: string;
  name: string;
  state: string;
  step?: string;
  message?: string;
  next?: string;
  question?: Question | null;
  steps?: OperationStep[] | null;
  started?: string;
  ended?: string;
  updated?: string;
  seq?: number;
}

export interface Event {
  seq: number;
  machine: string;
  run?: string;
  boot?: number;
  kind: string;
  key?: string;
  at: string;
  count?: number;
  message?: string;
  detail?: unknown;
  by?: string;
}

export interface Seen {
  mac: string;
  first: string;
  last: string;
  count: number;
}

/** An answer that is not a success: status 0 means that there was none. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly next?: string,
  ) {
    super(message);
  }
}

/** Parses JSON whose every string is cleaned on the way in. */
export function parse<T>(text: string): T {
  return JSON.parse(text, (_, v: unknown) => (typeof v === "string" ? clean(v) : v)) as T;
}

async function ask(method: string, path: string, body?: unknown): Promise<string> {
  let r: Response;
  let text: string;
  try {
    r = await fetch(path, {
      method,
      credentials: "same-origin",
      cache: "no-store",
      signal: AbortSignal.timeout(15_000),
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? null : JSON.stringify(body),
    });
    text = await r.text();
  } catch (e) {
    throw new Refused(0, `no answer from the server (${e instanceof Error ? e.message : String(e)})`);
  }
  if (r.ok) return text;
  let said: { error?: string; next?: string; problems?: { field?: string; what: string }[] | null } = {};
  try {
    said = parse(text);
  } catch {
    said = { error: clean(text).slice(0, 300) };
  }
  const problems = (said.problems ?? []).map((p) => (p.field ? `${p.field}: ${p.what}` : p.what));
  const message = [said.error || `the server answered ${r.status}`, ...problems.filter((p) => !said.error?.includes(p))].join("\n");
  throw new Refused(r.status, message, said.next);
}

const path = (...parts: string[]) => "/v1/" + parts.map(encodeURIComponent).join("/");

export const api = {
  status: async () => parse<Status>(await ask("GET", "/v1/status")),
  machines: async () => parse<{ items?: MachineView[] | null }>(await ask("GET", "/v1/machines")).items ?? [],
  seen: async () => parse<{ items?: Seen[] | null }>(await ask("GET", "/v1/seen")).items ?? [],
  workflow: async (machine: string) => parse<Workflow>(await ask("GET", path("machines", machine, "workflow"))),
  runEvents: async (run: string, after: number) =>
    parse<{ items?: Event[] | null }>(await ask("GET", `${path("workflows", run, "events")}?after=${after}`)).items ?? [],
  machineEvents: async (machine: string, after: number) =>
    parse<{ items?: Event[] | null }>(await ask("GET", `${path("machines", machine, "events")}?after=${after}&limit=200`)).items ?? [],
  log: async (run: string, action: number) => clean(await ask("GET", `${path("workflows", run, "logs")}?action=${action}`)),
  decide: (run: string, question: string, choice: string, diskSelector?: Selector) =>
    ask("POST", path("workflows", run, "decide"), { question, choice, diskSelector }),
  retry: (run: string, from: "failed-step" | "start") => ask("POST", path("workflows", run, "retry"), { from }),
  cancel: (run: string) => ask("POST", path("workflows", run, "cancel"), { reason: "cancelled in the page" }),
  operations: async () => parse<{ items?: Operation[] | null }>(await ask("GET", "/v1/operations?limit=20")).items ?? [],
  decideOperation: (run: string, question: string, choice: string) => ask("POST", path("operations", run, "decide"), { question, choice }),
  cancelOperation: (run: string) => ask("POST", path("operations", run, "cancel"), {}),
  reprovision: (machine: string) => ask("POST", path("machines", machine, "reprovision"), {}),
  decommission: (machine: string) => ask("POST", path("machines", machine, "decommission"), {}),
  release: (machine: string) => ask("POST", path("machines", machine, "release"), {}),
  poweredOn: (run: string) => ask("POST", path("workflows", run, "powered-on"), {}),
};

export interface Listener {
  open(): void;
  /** The stream ended or could not be had; it is tried again by itself. */
  lost(): void;
  event(name: string, data: string): void;
}

const names = ["machine", "workflow", "progress", "operation", "status"];

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
