// Text for people. All text from a machine, a BMC or a template passes through clean before
// the page uses it (see parse in api.ts).

// Terminal sequences: CSI, OSC (ended by BEL or ST), and two-byte escapes.
const sequences = /\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?/g;
// C0 and C1 without tab and newline, and what reorders or hides text.
const controls = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Returns s without terminal sequences, control characters, and characters that reorder or hide text; keeps tabs and newlines. */
export function clean(s: string): string {
  return s.replace(/\r\n/g, "\n").replace(sequences, "").replace(controls, "");
}

/** Returns s with control characters, and characters that reorder or hide text, made visible; keeps tabs and newlines. */
export function shown(s: string): string {
  return s.replace(/\r\n/g, "\n").replace(controls, (c) => {
    const code = c.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x7f ? "\u2421" : `<U+${code.toString(16).toUpperCase().padStart(4, "0")}>`;
  });
}

/** Returns n bytes in binary units, as the command line and the server's texts do: 1.5 GiB. */
export function bytes(n: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024;
    i++;
  }
  return `${i === 0 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

/** Returns a span of seconds: 8 s, 3 min 20 s, 2 h 5 min, 3 d. */
export function span(seconds: number): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return s % 60 === 0 || s >= 600 ? `${Math.floor(s / 60)} min` : `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) {
    const m = Math.floor((s % 3600) / 60);
    return m === 0 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 3600)} h ${m} min`;
  }
  return `${Math.floor(s / 86400)} d`;
}

/** Returns a span of seconds in its largest unit alone: 8 s, 3 min, 2 h, 3 d. */
export function roughly(seconds: number): string {
  return span(seconds).split(" ").slice(0, 2).join(" ");
}

/** Returns how long ago (or in how long) t is, seen from now (ms). */
export function ago(t: number, now: number): string {
  const s = (now - t) / 1000;
  if (Math.abs(s) < 3) return "now";
  return s < 0 ? `in ${span(-s)}` : `${span(s)} ago`;
}

// Each row of the table has a time: a formatter that is made once is many times as fast as toLocaleTimeString.
const times = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const dates = new Intl.DateTimeFormat([]);

/** Returns the clock time of t (ms), with the date unless it is today. */
export function clock(t: number, now: number): string {
  const d = new Date(t);
  const time = times.format(d);
  return d.toDateString() === new Date(now).toDateString() ? time : `${dates.format(d)} ${time}`;
}

/** Returns t in ms since 1970, or 0 when there is none (Go's zero time included). */
export function at(t: string | undefined | null): number {
  const n = t ? Date.parse(t) : 0;
  return n > 0 ? n : 0;
}
