import { useEffect, useState } from "preact/hooks";
import { Refused } from "./api";

/** What was loaded, why it could not be, and how to load it now. */
export interface Loaded<T> {
  value?: T;
  refused?: Refused;
  again(): void;
}

/** Loads again after this time, ms: others change it too. */
const every = 10_000;

/** Keeps what load returns, for a key: another key is loaded at once. What was loaded stays while it cannot be loaded again. */
export function useLoaded<T>(key: string, load: () => Promise<T>): Loaded<T> {
  const [got, set] = useState<{ key: string; value?: T; refused?: Refused }>({ key });
  const [turn, next] = useState(0);
  useEffect(() => {
    let gone = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const run = async () => {
      try {
        const value = await load();
        if (!gone) set({ key, value });
      } catch (e) {
        const refused = e instanceof Refused ? e : new Refused(0, String(e));
        if (!gone) set((was) => ({ ...(was.key === key ? was : { key }), refused }));
      }
      if (!gone) timer = setTimeout(() => void run(), every);
    };
    void run();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [key, turn]);
  return { ...(got.key === key ? got : {}), again: () => next((n) => n + 1) };
}
