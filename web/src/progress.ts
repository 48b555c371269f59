// The speed at which an action writes, from what the page has received.

interface Sample {
  at: number; // ms, the page's clock
  done: number;
}

export interface Pace {
  /** Bytes per second over the last seconds, or 0 while unknown. */
  rate: number;
  /** Seconds to go at this rate, or undefined. */
  left?: number;
  /** Seconds since the count last moved. */
  still: number;
}

const window = 20_000;

/** Meter keeps samples per attempt at an action. */
export class Meter {
  private readonly seen = new Map<string, Sample[]>();

  /** Notes that the attempt named key has done bytes. */
  note(key: string, done: number, now: number): void {
    const s = this.seen.get(key) ?? [];
    const last = s[s.length - 1];
    if (last && last.done === done) return;
    // A smaller count means a new stream of the same attempt.
    if (last && done < last.done) s.length = 0;
    s.push({ at: now, done });
    while (s.length > 2 && now - s[0]!.at > window) s.shift();
    this.seen.set(key, s);
  }

  /** Forgets all attempts but those named. */
  keep(keys: Set<string>): void {
    for (const k of this.seen.keys()) if (!keys.has(k)) this.seen.delete(k);
  }

  /** Returns the pace of an attempt of total bytes (0 = unknown). */
  pace(key: string, total: number, now: number): Pace {
    const s = this.seen.get(key);
    const first = s?.[0];
    const last = s?.[s.length - 1];
    if (!first || !last) return { rate: 0, still: 0 };
    const still = (now - last.at) / 1000;
    const took = (last.at - first.at) / 1000;
    if (took < 0.5) return { rate: 0, still };
    const rate = (last.done - first.done) / took;
    return { rate, still, left: rate > 0 && total > last.done ? (total - last.done) / rate : undefined };
  }
}
