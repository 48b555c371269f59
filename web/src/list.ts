// Which machines the table shows, and in what order.

import { manual, isOver } from "./phases";
import type { Tone } from "./phases";
import type { MachineView } from "./types";

export interface List {
  /** What is shown: machines that wait for the operator, then those that are retried, failed, at work, and the rest. */
  rows: MachineView[];
  /** How many there are of each kind, shown or not. */
  counts: Record<Tone, number>;
  /** Those that have to be switched on by hand. */
  toPower: MachineView[];
  /** Those that ask the same. */
  equal: Equal[];
}

/** Machines that ask the same: with the same choices and in the same words, apart from their names and addresses. */
export interface Equal {
  text: string;
  offered: string[];
  machines: MachineView[];
}

const order: Tone[] = ["waiting", "retrying", "failed", "working"];

/** Arranges machines, whose names come in order; only and find leave out others. */
export function arrange(names: readonly string[], machines: ReadonlyMap<string, MachineView>, tones: ReadonlyMap<string, Tone>, only: Tone | "", find: string): List {
  const counts: Record<Tone, number> = { waiting: 0, retrying: 0, failed: 0, working: 0, idle: 0, done: 0 };
  const parts = new Map<Tone, MachineView[]>(order.map((t) => [t, []]));
  const rest: MachineView[] = [];
  const toPower: MachineView[] = [];
  const asked = new Map<string, Equal>();
  for (const name of names) {
    const m = machines.get(name)!;
    const t = tones.get(name)!;
    counts[t]++;
    if (t === "waiting" && needsPower(m)) toPower.push(m);
    if (t === "waiting") join(asked, m);
    if ((only && t !== only) || (find && !matches(m, find))) continue;
    (parts.get(t) ?? rest).push(m);
  }
  return { rows: [...order.flatMap((t) => parts.get(t)!), ...rest], counts, toPower, equal: [...asked.values()].filter((e) => e.machines.length > 1) };
}

const address = /^(\d+(\.\d+){3}(:\d+)?|\w\w(:\w\w){5})$/;

/** Remembers what f returns for a view of a machine: a change of the machine is another view. */
export function remember<T>(f: (m: MachineView) => T): (m: MachineView) => T {
  const known = new WeakMap<MachineView, { value: T }>();
  return (m) => {
    let entry = known.get(m);
    if (!entry) known.set(m, (entry = { value: f(m) }));
    return entry.value;
  };
}

/** What a machine asks, without names and addresses. A question about a disk is answered at its machine alone. */
const askedBy = remember((m): { key: string; text: string; offered: string[] } | undefined => {
  const q = m.workflow?.question;
  if (!q || (q.disks ?? []).length > 0 || /\.bind\./.test(q.id)) return undefined;
  const offered = q.choices ?? [];
  const text = q.text.replace(/\w+([.:-]\w+)*/g, (word) => (word === m.name || address.test(word) ? "…" : word));
  return { key: JSON.stringify([text, offered]), text, offered };
});

/** Adds m to those that ask the same. */
function join(asked: Map<string, Equal>, m: MachineView): void {
  const a = askedBy(m);
  if (!a) return;
  const e = asked.get(a.key) ?? { text: a.text, offered: a.offered, machines: [] };
  e.machines.push(m);
  asked.set(a.key, e);
}

/** Reports whether a run waits until the operator has switched m on. */
export function needsPower(m: MachineView): boolean {
  const w = m.workflow;
  return !!w && !isOver(w) && !w.question && w.phase === "power" && manual(m);
}

// The text that a search covers; a changed row is a new object.
const texts = new WeakMap<MachineView, string>();

/** Reports whether name, address, label, image, template or phase of m contain find, which is in lower case. */
export function matches(m: MachineView, find: string): boolean {
  let text = texts.get(m);
  if (text === undefined) {
    const words = [m.name, m.template, m.image, m.workflow?.image, m.workflow?.phase, ...Object.entries(m.labels ?? {}).map(([k, v]) => `${k}=${v}`)];
    for (const i of m.interfaces ?? []) words.push(i.mac, i.address, i.hostname);
    texts.set(m, (text = words.filter(Boolean).join("\n").toLowerCase()));
  }
  return text.includes(find);
}

/** Returns where each row begins, and where the last one ends; isTall says which rows have the greater height. */
export function topsOf<T>(rows: readonly T[], isTall: (row: T, index: number) => boolean, tall: number, height: number): number[] {
  const tops = [0];
  for (const [i, row] of rows.entries()) tops.push(tops[i]! + (isTall(row, i) ? tall : height));
  return tops;
}

/** Returns which of the rows that begin at tops are drawn in a window of the given height, with some more on both sides. */
export function visible(tops: readonly number[], top: number, height: number): { from: number; to: number } {
  const spare = 12;
  const count = tops.length - 1;
  // The first row that does not begin before y.
  const at = (y: number) => {
    let [low, high] = [0, count];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tops[middle]! < y) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  return { from: Math.max(0, at(top) - 1 - spare), to: Math.min(count, at(top + height) + spare) };
}
