// The data of the page, kept up to date by the stream.

import { api, parse, Refused, Stream } from "./api";
import { isRunning, tone } from "./phases";
import type { Tone } from "./phases";
import { Meter } from "./progress";
import { at } from "./text";
import { Transfers } from "./transfers";
import type { Caller, MachineView, Operation, Seen, Status, Workflow } from "./types";

export type Link = "connecting" | "live" | "lost" | "denied";

/** Names an attempt for the meter. */
export const attempt = (w: Workflow, index: number) => `${w.run}/${index}/${w.actions?.[index]?.attempt ?? 0}`;

// One collator for many comparisons: "node-2" comes before "node-10".
const byName = new Intl.Collator(undefined, { numeric: true }).compare;

/** Silence after which the connection is looked at, ms: the server sends its status every 5 s. */
const silence = 20_000;
/** How long a new connection may take until the machines have come, ms: thousands of rows over a slow line. */
const patience = 120_000;
/** Pause between a change and what is drawn of it, ms: changes come in bursts. */
const settle = 40;

export class Store {
  link: Link = "connecting";
  /** False until the machines came for the first time. */
  loaded = false;
  status?: Status;
  /** The version of the server when the page was opened. */
  private version?: string;
  caller?: Caller;
  readonly machines = new Map<string, MachineView>();
  /** The state of each machine. */
  readonly tones = new Map<string, Tone>();
  /** What is done with many machines or with the server, by run. */
  readonly operations = new Map<string, Operation>();
  seen: Seen[] = [];
  readonly meter = new Meter();
  /** Images on their way. */
  readonly transfers = new Transfers(() => this.changed());
  private sorted?: string[];
  /** Server's clock minus the page's, ms. */
  private skew = 0;
  /** When the last contact with the server was, ms of the page's clock. */
  lastContact = 0;
  private timer?: ReturnType<typeof setTimeout>;
  private readonly listeners = new Set<() => void>();
  private stream?: Stream;

  /** Begins, and returns how to end. */
  run(): () => void {
    this.stream = new Stream({
      open: () => undefined, // the important part is that machines arrive
      lost: () => {
        if (this.link === "live") this.link = "lost";
        this.changed();
        void this.check();
      },
      event: (name, data) => this.take(name, data),
    });
    const watch = setInterval(() => {
      // A connection whose other end is gone stays silent forever.
      if (this.link === "live") {
        if (Date.now() - this.lastContact > silence) void this.check();
      } else if (Date.now() - this.stream!.began > patience) this.again();
    }, 5_000);
    const awake = () => {
      if (document.visibilityState === "visible" && this.link !== "live") this.again();
    };
    document.addEventListener("visibilitychange", awake);
    const leave = (e: Event) => this.transfers.busy && e.preventDefault();
    globalThis.addEventListener?.("beforeunload", leave);
    return () => {
      globalThis.removeEventListener?.("beforeunload", leave);
      clearInterval(watch);
      document.removeEventListener("visibilitychange", awake);
      this.stream?.close();
    };
  }

  /** Calls f after changes; returns how to stop that. */
  subscribe(f: () => void): () => void {
    this.listeners.add(f);
    return () => this.listeners.delete(f);
  }

  /** The server's time in ms. It does not change while the connection is lost. */
  now(): number {
    return (this.link === "lost" && this.lastContact ? this.lastContact : Date.now()) + this.skew;
  }

  /** Whether nothing may be done from this page now: the connection is lost, or the session may only look. */
  get idle(): boolean {
    return this.link === "lost" || this.caller?.role === "read";
  }

  /** Whether the page is of another version than the server. */
  get outdated(): boolean {
    return this.link === "live" && this.version !== (this.status?.version || this.version);
  }

  /** When the connection is tried next, ms of the page's clock, 0 = now. */
  get due(): number {
    return this.stream?.due ?? 0;
  }

  /** The names of all machines, in order. */
  get names(): readonly string[] {
    return (this.sorted ??= [...this.machines.keys()].sort(byName));
  }

  again(): void {
    this.stream?.again();
  }

  // An animation frame would be a better moment, but there are none while the page is in the
  // background.
  private changed(): void {
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      for (const f of this.listeners) f();
    }, settle);
  }

  // Finds out why the stream is gone, or whether it is gone.
  private async check(): Promise<void> {
    const lastContact = this.lastContact;
    let status: Status | undefined;
    let denied = false;
    try {
      status = await api.status();
    } catch (e) {
      denied = e instanceof Refused && e.status === 401;
    }
    if (this.lastContact !== lastContact) return; // the stream is back

    const was = this.link;
    if (status) {
      this.setStatus(status);
      if (was === "live") this.link = "lost"; // until the machines have arrived again
      if (was === "live" || was === "denied") this.again();
    } else {
      this.link = denied ? "denied" : "lost";
      // A stream that has failed reconnects automatically; this one did not notice the
      // failure.
      if (was === "live") setTimeout(() => this.link === "lost" && this.again(), 2_000);
    }
    this.changed();
  }

  private setStatus(s: Status): void {
    this.status = s;
    this.version ||= s.version;
    if (at(s.time)) this.skew = at(s.time) - Date.now();
  }

  // The stream is in order, so its last message is valid, even if it is about an earlier
  // run.
  private put(m: MachineView): void {
    if (!this.machines.has(m.name)) this.sorted = undefined;
    this.machines.set(m.name, m);
    this.tones.set(m.name, tone(m));
    m.workflow?.actions?.forEach((a, i) => {
      if (isRunning(a) && a.done) this.meter.note(attempt(m.workflow!, i), a.done, Date.now());
    });
  }

  private forget(name: string): void {
    this.machines.delete(name);
    this.tones.delete(name);
    this.sorted = undefined;
  }

  // All machines: those not in the list are gone.
  private putAll(all: MachineView[]): void {
    const names = new Set(all.map((m) => m.name));
    for (const name of this.machines.keys()) if (!names.has(name)) this.forget(name);
    const attempts = new Set<string>();
    for (const m of all) {
      this.put(m);
      m.workflow?.actions?.forEach((_, i) => attempts.add(attempt(m.workflow!, i)));
    }
    this.meter.keep(attempts);
    this.operations.clear(); // sent after this event
    this.loaded = true;
    this.link = "live";
    // A hint which machines could be added.
    api.seen().then(
      (seen) => {
        this.seen = seen;
        this.changed();
      },
      () => undefined,
    );
  }

  private take(name: string, data: string): void {
    this.lastContact = Date.now();
    try {
      if (name === "status") this.setStatus(parse<Status>(data));
      else if (name === "caller") this.caller = parse<Caller>(data);
      else if (name === "machines") this.putAll(parse<{ items?: MachineView[] | null }>(data).items ?? []);
      else if (name === "machine") {
        const m = parse<MachineView>(data);
        if (m.deleted) this.forget(m.name);
        else this.put(m);
      } else if (name === "operation") {
        const o = parse<Operation>(data);
        if (o.deleted) this.operations.delete(o.run);
        else this.operations.set(o.run, o);
      }
    } catch {
      // An unreadable frame must not end the stream; the next one repairs the state.
      return;
    }
    this.changed();
  }
}
