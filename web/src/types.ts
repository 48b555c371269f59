// The records of the server as JSON.

/** The token with which the session was opened. */
export interface Caller {
  name: string;
  role: string;
}

export interface Status {
  version?: string;
  uptimeSeconds?: number;
  temporal?: { ready: boolean; address?: string; ui?: string; uiLinks?: boolean; namespace?: string; error?: string };
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
  /** What the last run that wrote to its disk has left; the panel's machine alone has it. */
  installed?: { image?: string; template?: string; noSystem?: boolean } | null;
  lastSeen?: string;
  /** When it was stored last. */
  updated?: string;
}

export interface Disk {
  path: string;
  serial?: string;
  wwn?: string;
  model?: string;
  byID?: string[] | null;
  size: number;
  sectorSize?: number;
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
  /** How a run that has succeeded knows that the installed system is up; "weak": it waited for no sign of it. */
  evidence?: string;
  /** No action writes a system: a success installs nothing. */
  noSystem?: boolean;
  installer?: boolean;
  /** A later run that installed or wiped the machine, and whose record was deleted. */
  supersededBy?: string;
  /** What fails and is tried again at this moment. */
  retrying?: string[] | null;
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

/** A Genesis, a migration, a recovery or machines that are installed together. */
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

/** A line that a machine has sent by syslog. */
export interface SyslogLine {
  seq: number;
  at: string;
  severity: string;
  program?: string;
  text: string;
}

/** What a machine would boot now, and its last requests to the boot servers, the oldest first. */
export interface Explanation {
  verdict: string;
  reasons?: string[] | null;
  heard?: { at: string; where: string; request: string; answer: string }[] | null;
}

export interface Seen {
  mac: string;
  first: string;
  last: string;
  count: number;
  /** What the agent on it has reported. */
  facts?: { manufacturer?: string; product?: string; serial?: string; cpu?: string; memory?: number; disks?: Disk[] | null } | null;
}

export interface Image {
  name: string;
  url?: string;
  size: number;
  sha256: string;
  /** Nobody declared the digest: the server computed it. */
  firstSeen?: boolean;
  format: string;
  diskSize?: number;
  inPlace?: { path: string } | null;
  source?: { format: string; size: number; sha256: string } | null;
  sectorSize?: number;
  boots?: string[] | null;
  contents?: string;
  warning?: string;
  use?: string;
  created?: string;
}

/** An image of a publisher, in the catalogue. */
export interface Offered {
  name: string;
  about?: string;
  url: string;
  user?: string;
  template?: string;
  use?: string;
}

export interface Template {
  name: string;
  source: string;
  builtin?: boolean;
  updated?: string;
}

/** What a template would do to a machine. */
export interface Rendering {
  actions?: { name: string; image: string; timeout: number; environment?: Record<string, string> | null }[] | null;
  warnings?: string[] | null;
}

/** What applying does with one object. */
export interface Applied {
  kind: string;
  name: string;
  result: string;
  changes?: { field: string; old?: string; new?: string; conflict?: boolean }[] | null;
  /** The other set to which it belongs. */
  foreign?: string;
}

/** What applying documents did or, if nothing was stored, would do. */
export interface Application {
  stored: boolean;
  items: Applied[];
  warnings?: string[] | null;
}

export interface Token {
  id: string;
  name: string;
  role: string;
  created?: string;
  by?: string;
  expires?: string;
  /** Refused since a restore from a backup. */
  off?: boolean;
}

/** What a BMC reports; ok is false, and message says why, if it does not. */
export interface BMCCheck {
  ok: boolean;
  message?: string;
  power?: string;
  boot?: string;
  maker?: string;
  model?: string;
  firmware?: string;
}

/** How long a phase takes: the median in seconds, of so many times. */
export interface PhaseTime {
  phase: string;
  seconds: number;
  count: number;
}
