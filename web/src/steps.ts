// The steps of an operation as text: a Genesis, a migration, a recovery, machines that are installed together.

import type { MachineView, Operation, OperationStep } from "./types";
import { tone } from "./phases";
import type { Tone } from "./phases";
import { at } from "./text";

const final = new Set(["SUCCESS", "FAILED", "TIMEOUT", "CANCELLED"]);

/** Reports whether an operation has ended. */
export function ended(o: Operation): boolean {
  return final.has(o.state);
}

type Machines = ReadonlyMap<string, MachineView>;

/** Returns the machine of a step that is under way there, if it is. */
export function acting(s: OperationStep, machines: Machines): MachineView | undefined {
  const m = s.machine ? machines.get(s.machine) : undefined;
  // A step shows its run or, if unknown, what the machine does now.
  return m?.workflow && (s.run ? m.workflow.run === s.run : s.state === "running") ? m : undefined;
}

/** The state of an operation: it also waits for the operator when a machine of a step under way does. */
export function standing(o: Operation, machines: Machines): Tone {
  if (ended(o)) return o.state === "SUCCESS" ? "done" : o.state === "CANCELLED" ? "idle" : "failed";
  if (o.question) return "waiting";
  const tones = (o.steps ?? []).map((s) => stepTone(s, o, machines));
  return tones.includes("waiting") ? "waiting" : tones.includes("retrying") ? "retrying" : "working";
}

/** The state of a step. */
export function stepTone(s: OperationStep, o: Operation, machines: Machines): Tone {
  switch (s.state) {
    case "running": {
      if (ended(o)) return "idle";
      const m = acting(s, machines);
      const t = m && tone(m);
      return t === "waiting" || t === "retrying" ? t : "working";
    }
    case "waiting":
      return ended(o) ? "failed" : "waiting";
    case "failed":
      // A question about this step waits for an answer.
      return o.question && !ended(o) ? "waiting" : "failed";
    case "done":
      return "done";
  }
  return "idle";
}

const words: Record<string, string> = { pending: "not yet", running: "under way", waiting: "waits for the operator", done: "done", failed: "failed", undone: "undone", skipped: "skipped" };

/** Returns the state of a step in words. */
export function stateOf(s: OperationStep): string {
  return words[s.state] ?? s.state;
}

/** Returns how many seconds a step was at work until now (ms), without those in which an operator was awaited; undefined when it has not begun. */
export function took(s: OperationStep, now: number): number | undefined {
  const began = at(s.since);
  if (!began) return undefined;
  const until = [at(s.ended), at(s.asked)].find((t) => t >= began) ?? (s.state === "running" || s.state === "waiting" ? now : undefined);
  return until === undefined ? undefined : Math.max(0, (until - began) / 1000 - (s.waited ?? 0) / 1e9);
}

/** Reports whether a step under way exceeds its budget. */
export function late(s: OperationStep, now: number): boolean {
  const t = took(s, now);
  return t !== undefined && (s.state === "running" || s.state === "waiting") && (s.budget ?? 0) > 0 && t > s.budget! / 1e9;
}

/** Returns what is said of a step now: what it waits for or what became of it, and otherwise what it does. */
export function saying(s: OperationStep): string {
  if (s.message) return s.message;
  if ((s.state === "running" || s.state === "waiting") && s.waits) return `${s.does} Waits for: ${s.waits}`;
  return s.does;
}

/** Returns how many steps are done, or left out. */
export function stepsDone(o: Operation): number {
  return (o.steps ?? []).filter((s) => s.state === "done" || s.state === "skipped").length;
}

/** Returns "3 of 11" for the step under way, or "" when the operation has no steps yet. */
export function progress(o: Operation): string {
  const all = o.steps ?? [];
  if (all.length === 0) return "";
  return `${stepsDone(o)} of ${all.length} steps done`;
}
