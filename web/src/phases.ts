// Texts for the phases and events of a run.

import type { Action, Event, MachineView, Workflow } from "./types";
import { at, clock, span } from "./text";

/** The state of a machine, for colour, filter and sign. */
export type Tone = "idle" | "working" | "retrying" | "waiting" | "failed" | "done";

const final = new Set(["SUCCESS", "FAILED", "TIMEOUT", "CANCELLED"]);

/** Reports whether a run has ended. */
export function isOver(w: Workflow): boolean {
  return final.has(w.state ?? "");
}

/** Reports whether action a is running: an agent may report progress before the record does. */
export function isRunning(a: Action): boolean {
  return a.state === "RUNNING" || (a.state === "PENDING" && ((a.done ?? 0) > 0 || (a.total ?? 0) > 0));
}

export function tone(m: MachineView): Tone {
  const w = m.workflow;
  if (!w) return "idle";
  if (isOver(w)) return w.state === "SUCCESS" ? "done" : w.state === "CANCELLED" ? "idle" : "failed";
  if (w.question || w.phase === "waiting-for-operator" || (w.phase === "power" && manual(m))) return "waiting";
  return (w.retrying ?? []).length > 0 ? "retrying" : "working";
}

const provision = ["plan", "arm", "power", "dhcp", "loader", "agent", "bind", "action", "disarm", "reboot", "ready"];
// A template's installer follows its actions; there may be no actions.
const install = ["plan", "arm", "power", "dhcp", "loader", "install", "disarm", "ready"];
const wipeAndInstall = ["plan", "arm", "power", "dhcp", "loader", "agent", "bind", "action", "install", "disarm", "ready"];
const decommission = ["plan", "arm", "power", "dhcp", "loader", "agent", "action", "disarm"];
const inspect = ["plan", "arm", "power", "dhcp", "loader", "agent", "disarm"];

/** What each step is called, and what it means. */
export const steps: Record<string, [label: string, means: string]> = {
  plan: ["Plan", "template rendered, image resolved to its digest"],
  arm: ["Arm", "netboot opened for this run alone"],
  power: ["Power", "off, one-time network boot, on"],
  dhcp: ["DHCP", "the machine asks for an address"],
  loader: ["Loader", "boot loader, kernel and initramfs are fetched"],
  agent: ["Agent", "the agent on the machine says hello"],
  bind: ["Disk", "the disk to write is chosen by its serial"],
  action: ["Actions", "the template's actions are carried out"],
  install: ["Install", "another installer is at work and reports its end"],
  disarm: ["Disarm", "netboot closed"],
  reboot: ["Reboot", "into the installed system"],
  ready: ["Ready", "the installed system has reported"],
};

// The phase that a kind of event proves to be reached.
const proof: Record<string, string> = {
  grant: "arm",
  armed: "arm",
  power: "power",
  dhcp: "dhcp",
  loader: "loader",
  script: "loader",
  kernel: "loader",
  initrd: "loader",
  hello: "agent",
  bound: "bind",
  assigned: "action",
  "action-started": "action",
  "action-completed": "action",
  document: "install",
  payload: "install",
  installed: "install",
  "install-failed": "install",
  disarmed: "disarm",
  "phone-home": "reboot",
};

/** Returns the phase that a phase event names. */
export function phaseOf(e: Event): string | undefined {
  if (e.kind !== "phase") return undefined;
  const d = e.detail as { phase?: unknown } | null | undefined;
  if (d && typeof d === "object" && typeof d.phase === "string") return d.phase;
  for (const t of [e.key, e.message]) {
    const word = /[a-z][a-z-]*/.exec(t ?? "")?.[0];
    if (word && (word in steps || word === "done" || word === "waiting-for-operator" || word === "stopping" || word === "failed" || word === "cancelled")) return word;
  }
  return undefined;
}

export interface Step {
  id: string;
  label: string;
  means: string;
  state: "done" | "now" | "waiting" | "failed" | "todo";
  /** Seconds that it took, when the events show it. */
  took?: number;
}

/** Returns how far a run is in its phases, by its record and, where it ended or waits, by its events. */
export function stepsOf(w: Workflow, t: Tone, events: Event[], now: number): Step[] {
  if (w.type === "BMCJob") return [];
  const order = w.type === "Inspect" ? inspect : w.type === "Decommission" ? decommission : w.installer ? ((w.actions ?? []).length > 0 ? wipeAndInstall : install) : provision;
  let here = order.indexOf(w.phase ?? "");
  const actions = w.actions ?? [];
  if (here < 0) {
    const asked = /^\d+\.([a-z]+)\./.exec(w.question?.id ?? "")?.[1];
    const failed = isOver(w) && w.state !== "SUCCESS";
    if (w.state === "SUCCESS" || w.phase === "done") here = order.length;
    else if (asked) here = order.indexOf(asked);
    else if (actions.some((a) => a.state !== "PENDING" && a.state !== "SUCCESS" && a.state !== "")) here = order.indexOf("action");
    else {
      // Disarm runs at the end of every run, so it proves nothing.
      for (const e of events) {
        const reached = order.indexOf(phaseOf(e) ?? proof[e.kind] ?? "");
        if (failed && order[reached] === "disarm") continue;
        if (reached > here) here = reached;
      }
      if (here < 0 && actions.some((a) => a.state === "SUCCESS")) here = order.indexOf("action");
    }
    if (here < 0) here = 0;
  }
  const began = new Map<string, number>();
  const changes = events.filter((e) => phaseOf(e));
  const took = new Map<string, number>();
  changes.forEach((e, i) => {
    const p = phaseOf(e)!;
    const start = at(e.at);
    began.set(p, start);
    const end = changes[i + 1] ? at(changes[i + 1]!.at) : isOver(w) ? at(w.ended) : now;
    if (end >= start) took.set(p, (took.get(p) ?? 0) + (end - start) / 1000);
  });
  return order.map((id, i) => {
    const [label, means] = steps[id]!;
    let state: Step["state"] = i < here ? "done" : i > here ? "todo" : "now";
    if (i === here && t === "waiting") state = "waiting";
    if (i === here && isOver(w)) state = "failed";
    if (id === "ready" && isOver(w) && (isWeak(w) || w.evidence === "webhook" || (w.noSystem && !w.evidence))) state = "todo"; // no system has reported
    return { id, label, means, state, took: i <= here ? took.get(id) : undefined };
  });
}

/** Returns the index of the action to look at: the one that runs, else the one that failed, else the last that ended. */
export function current(w: Workflow): number {
  const a = w.actions ?? [];
  const find = (ok: (s: string) => boolean) => a.findIndex((x) => ok(x.state));
  const running = a.findIndex(isRunning);
  if (running >= 0) return running;
  const bad = find((s) => s === "FAILED" || s === "TIMEOUT" || s === "STOPPED");
  if (bad >= 0) return bad;
  if (w.phase === "action") {
    const next = find((s) => s !== "SUCCESS");
    if (next >= 0) return next;
  }
  return a.reduce((last, x, i) => (x.state === "SUCCESS" ? i : last), -1);
}

/** Returns the action that runs or is about to, while the run is in its actions. */
export function running(w: Workflow): { action: Action; index: number } | undefined {
  if (isOver(w) || (w.phase !== "action" && w.phase !== "stopping" && w.phase !== "reboot")) return undefined;
  const index = (w.actions ?? []).findIndex(isRunning);
  const i = index >= 0 ? index : w.phase === "action" ? current(w) : -1;
  const action = w.actions?.[i];
  return action && action.state !== "SUCCESS" ? { action, index: i } : undefined;
}

/** Reports whether the operator has to press the machine's button, at least to switch it off. */
export function manual(m: MachineView): boolean {
  return !m.bmc || !m.bmc.driver || m.bmc.driver === "manual" || m.bmc.driver === "wol";
}

/** Says what m is doing, in a few words. */
export function doing(m: MachineView, now: number): string {
  const w = m.workflow;
  if (!w) {
    if (m.netboot?.allowPXE) return `Armed by hand${m.netboot.until ? ` until ${clock(at(m.netboot.until), now)}` : ""}`;
    return "Not provisioned yet";
  }
  const what = w.type === "Inspect" ? "Inspection" : w.type === "BMCJob" ? "BMC job" : w.type === "Decommission" ? "Decommissioning" : "Installation";
  if (isOver(w) && m.standing) return m.standing.state === "quarantined" ? "Quarantined" : "Decommissioned: wiped, off, available";
  if (isOver(w)) {
    const when = at(w.ended) ? `, ${span((now - at(w.ended)) / 1000)} ago` : "";
    if (w.state === "SUCCESS") return `${result(w, what)}${when}`;
    if (w.state === "CANCELLED") return `${what} cancelled${when}`;
    if (w.state === "TIMEOUT") return `${what} ran out of time${when}`;
    return `${what} failed${when}`;
  }
  if (w.question || w.phase === "waiting-for-operator") return "Waits for your decision";
  return (tone(m) === "retrying" ? "Trying again: " : "") + doingNow(m, w);
}

/** Reports whether a run has installed a system and waited for no sign that it has started. */
export function isWeak(w: Workflow): boolean {
  return w.state === "SUCCESS" && w.evidence === "weak";
}

/** Returns the image to show for m: its run's, or its own. A run that writes no system has not written its own. */
export function imageOf(m: MachineView): string | undefined {
  const w = m.workflow;
  return w?.noSystem ? w.image : w?.image || m.image;
}

/** Says what a run that has succeeded has reached; what names its kind. */
function result(w: Workflow, what: string): string {
  if (w.type !== undefined && w.type !== "Provision" && w.type !== "Reprovision") return `${what} done`;
  if (w.noSystem) return "Finished: nothing was installed";
  return w.evidence === "weak" || w.evidence === "webhook" ? `Installed (evidence: ${w.evidence})` : "Installed and ready";
}

function doingNow(m: MachineView, w: Workflow): string {
  const a = running(w);
  switch (w.phase) {
    case "plan":
      return "Preparing the plan";
    case "arm":
      return "Opening netboot for this run";
    case "power":
      return manual(m) ? "Power it on now" : "Power: off, network boot, on";
    case "dhcp":
      return "Waiting for its DHCP request";
    case "loader":
      return "Loading the agent's system";
    case "agent":
      return "Waiting for the agent's hello";
    case "bind":
      return "Choosing the disk";
    case "action":
      return a ? `Action ${a.index + 1} of ${w.actions!.length}: ${a.action.name}` : "Carrying out actions";
    case "install":
      return w.state === "RUNNING" ? "Its installer is at work" : "Loading the installer";
    case "stopping":
      return "Stopping the agent";
    case "disarm":
      return "Closing netboot";
    case "reboot":
      return "Rebooting into the installed system";
    case "ready":
      return "Checking that the system is ready";
  }
  return w.type === "BMCJob" ? "BMC job is running" : `In phase ${w.phase || "unknown"}`;
}

// Texts for kinds of events without a message.
const kinds: Record<string, string> = {
  dhcp: "asked for an address (PXE)",
  loader: "fetched the boot loader",
  script: "fetched its boot script",
  kernel: "fetched the kernel",
  initrd: "fetched the initramfs",
  rebooted: "network boot after its boot was spent",
  "boot-lost": "the boot was lost",
  disk: "network boot while not armed: sent to disk",
  os: "its system asked for an address",
  metadata: "fetched metadata",
  hello: "agent said hello",
  "claim-conflict": "a second agent claimed the same boot",
  "action-started": "action started",
  "action-completed": "action ended",
  "agent-idle": "agent asks for work",
  "agent-lost": "agent is silent",
  "phone-home": "installed system phoned home",
  document: "fetched a document",
  payload: "the installer was delivered whole",
  installed: "the installer has succeeded",
  "install-failed": "the installer has failed",
  phase: "next phase",
  grant: "run took the machine",
  armed: "netboot opened",
  disarmed: "netboot closed",
  power: "power",
  bound: "disk chosen",
  assigned: "action assigned",
  stop: "agent ordered to stop",
  decision: "decided",
  retired: "decommissioned",
  operator: "changed by an operator",
};

/** Returns the text of an event. */
export function eventText(e: Event): string {
  const phase = phaseOf(e);
  const s = e.message || (phase && `→ ${steps[phase]?.[0] ?? phase}`) || kinds[e.kind] || e.kind;
  return e.count && e.count > 1 ? `${s} (${e.count} times)` : s;
}
