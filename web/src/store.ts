// What the page knows, kept fresh by the stream.

import { api, parse, Refused, Stream } from "./api";
import type { Event, MachineView, Operation, Seen, Status, Workflow } from "./api";
import { over, runs } from "./phases";
import { Meter } from "./progress";
import { at } from "./text";

export type Link = "connecting" | "live" | "lost" | "denied";

/** Returns the newer one of two records of runs of the same machine. */
export function newer(old: Workflow | null | undefined, next: Workflow): Workflow {
  if (!old) return next;
  if (old.run !== next.run) return at(next.started) >= at(old.started) ? next : old;
  if (next.updated && at(next.updated) < at(old.updated)) return old;
  // A progress event may be a fragment: what it does not say stays.
  return next.state ? next : { ...old, actions: next.actions ?? old.actions };
}

/** Returns the later one of two records of an operation. */
export function later(old: Operation | undefined, next: Operation): Operation {
  return old && (next.seq ?? 0) < (old.seq ?? 0) ? old : next;
}

/** Names an attempt for the meter. */
export const attempt = (w: Workflow, index: number) => `${w.run}/${index}/${w.actions?.[index]?.attempt ?? 0}`;

export class Store {
  link: Link = "connecting";
  /** False until the machines were loaded once. */
  loaded = false;
  status?: Status;
  machines = new Map<string, MachineView>();
  /** What is done with many machines or with the server, by run. */
  operations = new Map<string, Operation>();
  seen: Seen[] = [];
  meter = new Meter();
  /** Server's clock minus the page's, ms. */
  private skew = 0;
  private heard = 0;
  private loading?: Promise<void>;
  /** The newest event of a run by machine, where the server does not tell it. */
  private readonly last = new Map<string, Event>();
  private readonly asking = new Set<string>();
  private readonly listeners = new Set<() => void>();
  private stream?: Stream;

  /** Begins, and returns how to end. */
  run(): () => void {
    this.stream = new Stream({
      open: () => void this.load(),
      lost: () => {
        if (this.link === "live") this.link = "lost";
        this.changed();
        void this.check();
      },
      event: (name, data) => this.take(name, data),
    });
    const watch = setInterval(() => {
      // A connection whose other end is gone says nothing for ever.
      if (this.link === "live" && Date.now() - this.heard > 30_000) void this.check();
    }, 5_000);
    const awake = () => {
      if (document.visibilityState === "visible" && this.link !== "live") this.again();
    };
    document.addEventListener("visibilitychange", awake);
    return () => {
      clearInterval(watch);
      document.removeEventListener("visibilitychange", awake);
      this.stream?.close();
    };
  }

  /** Calls f after each change; returns how to stop that. */
  subscribe(f: () => void): () => void {
    this.listeners.add(f);
    return () => this.listeners.delete(f);
  }

  /** The server's time in ms. */
  now(): number {
    return Date.now() + this.skew;
  }

  /** When the connection is tried next, ms of the page's clock, 0 = now. */
  get due(): number {
    return this.stream?.due ?? 0;
  }

  again(): void {
    this.stream?.again();
  }

  private changed(): void {
    for (const f of this.listeners) f();
  }

  // Loads everything; calls while it runs are one call.
  private load(): Promise<void> {
    this.loading ??= this.fetch().finally(() => (this.loading = undefined));
    return this.loading;
  }

  private async fetch(): Promise<void> {
    try {
      const [status, machines] = await Promise.all([api.status(), api.machines()]);
      this.heard = Date.now();
      this.setStatus(status);
      const before = this.machines;
      this.machines = new Map();
      for (const m of machines) this.put(m, before.get(m.name));
      const keys = new Set<string>();
      for (const m of machines) m.workflow?.actions?.forEach((_, i) => keys.add(attempt(m.workflow!, i)));
      this.meter.keep(keys);
      this.loaded = true;
      this.link = "live";
    } catch (e) {
      this.failed(e);
    }
    this.changed();
    try {
      const operations = await api.operations();
      const before = this.operations;
      this.operations = new Map(operations.map((o) => [o.run, later(before.get(o.run), o)]));
      this.changed();
      this.seen = await api.seen();
      this.changed();
    } catch {
      // The stream brings operations, too, and the rest is a hint of which machines could be added.
    }
  }

  // Finds out why the stream is gone, or whether it is.
  private async check(): Promise<void> {
    try {
      this.setStatus(await api.status());
      if (this.link === "live" && Date.now() - this.heard > 30_000) {
        this.heard = Date.now();
        void this.load();
      } else if (this.link === "denied") this.again();
    } catch (e) {
      this.failed(e);
    }
    this.changed();
  }

  private failed(e: unknown): void {
    this.link = e instanceof Refused && e.status === 401 ? "denied" : "lost";
    if (this.due === 0 && this.link === "lost") setTimeout(() => this.link === "lost" && this.again(), 2_000);
  }

  private setStatus(s: Status): void {
    this.status = s;
    if (at(s.time)) this.skew = at(s.time) - Date.now();
  }

  private put(m: MachineView, before: MachineView | undefined): void {
    if (m.workflow) m.workflow = newer(before?.workflow, m.workflow);
    this.machines.set(m.name, m);
    if (m.workflow) this.measure(m.workflow);
    this.trace(m);
  }

  /** Returns what m did last. */
  lastEvent(m: MachineView): Event | undefined {
    return m.lastEvent ?? this.last.get(m.name);
  }

  // Asks for the newest event of an open run, at most every 2 s.
  private trace(m: MachineView): void {
    const w = m.workflow;
    const had = this.last.get(m.name);
    if (had && had.run && had.run !== w?.run) this.last.delete(m.name);
    if (m.lastEvent || !w || over(w) || this.asking.has(m.name)) return;
    this.asking.add(m.name);
    setTimeout(() => {
      const after = this.last.get(m.name)?.seq ?? 0;
      api
        .runEvents(w.run, after)
        .then((e) => {
          const newest = e[e.length - 1];
          if (newest) this.last.set(m.name, newest);
          this.changed();
        })
        .catch(() => undefined) // only a line of text; the next change asks again
        .finally(() => this.asking.delete(m.name));
    }, 2_000);
  }

  private measure(w: Workflow): void {
    w.actions?.forEach((a, i) => {
      if (runs(a) && a.done) this.meter.note(attempt(w, i), a.done, Date.now());
    });
  }

  private take(name: string, data: string): void {
    this.heard = Date.now();
    try {
      if (name === "status") this.setStatus(parse<Status>(data));
      else if (name === "machine") {
        const m = parse<MachineView>(data);
        if (m.deleted) this.machines.delete(m.name);
        else this.put(m, this.machines.get(m.name));
      } else if (name === "operation") {
        const o = parse<Operation>(data);
        if (o.deleted) this.operations.delete(o.run);
        else this.operations.set(o.run, later(this.operations.get(o.run), o));
      } else {
        const w = parse<Workflow>(data);
        const m = this.machines.get(w.machine);
        // A person's BMC job does not hide what was installed.
        if (!m || (m.workflow?.run !== w.run && w.id && !w.id.startsWith("machine/"))) return;
        this.machines.set(m.name, { ...m, workflow: newer(m.workflow, w) });
        this.measure(this.machines.get(m.name)!.workflow!);
        this.trace(this.machines.get(m.name)!);
      }
    } catch {
      // One frame that cannot be read must not end the stream; the next load repairs.
      return;
    }
    this.changed();
  }
}
