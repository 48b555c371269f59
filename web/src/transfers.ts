// Images on their way to the server: uploads, which go on after a break, and what the server fetches.

import { api, Refused } from "./api";
import type { UploadOptions } from "./api";
import type { Doc } from "./document";
import { sha256 } from "./sha256";

export interface Transfer {
  image: string;
  /** reading: the file is digested here, so that a broken upload can go on; checking: the server reads what it has. */
  state: "reading" | "sending" | "waiting" | "checking" | "fetching" | "done" | "failed";
  /** Bytes, of total; total is 0 if it is not known. */
  done: number;
  total: number;
  /** Why it has failed, or what broke it last. */
  why?: Refused;
  /** Begins again, where it is possible with what the server has. */
  again(): Promise<void>;
}

/** Bytes of one request: what a break can cost. */
const chunk = 8 << 20;
/** How often an upload goes on without progress before it fails. */
const attempts = 10;
/** Pause between two looks at how far the server is, ms. */
const look = 2000;

export const isOpen = (t: Transfer) => t.state !== "done" && t.state !== "failed";

export class Transfers {
  readonly all = new Map<string, Transfer>();

  /** changed is called after each change. */
  constructor(private readonly changed: () => void) {}

  /** Uploads a file as an image. A break of the connection only makes it wait. */
  upload(image: string, file: Blob, how: UploadOptions): Promise<void> {
    return this.run({ image, state: "reading", done: 0, total: file.size, again: () => this.upload(image, file, how) }, async (note) => {
      await api.received(image, how); // refuses what cannot be the name of an image before the file is read
      const content = await sha256(file, (done) => note({ done }));
      for (let failed = 0; ; ) {
        try {
          let at = Math.min((await api.received(image, { ...how, content })).bytes, file.size);
          do {
            const end = Math.min(at + chunk, file.size);
            note({ state: "sending", done: at });
            const sent = api.upload(image, { ...how, content, offset: at, size: file.size }, file.slice(at, end));
            await (end < file.size ? sent : this.watch(sent, async () => note({ state: "checking", done: (await api.received(image, { ...how, content })).checked })));
            at = end;
            failed = 0;
          } while (at < file.size);
          return;
        } catch (e) {
          // 409 after a break: the server has not noticed yet that the connection is gone.
          const broken = e instanceof Refused && (e.status === 0 || e.status >= 502 || (e.status === 409 && failed > 0));
          if (!broken || ++failed > attempts) throw e;
          note({ state: "waiting", why: e });
          await new Promise((r) => setTimeout(r, Math.min(30_000, 500 * 2 ** failed)));
        }
      }
    });
  }

  /** Lets the server fetch an image. */
  fetch(image: string, what: Doc): Promise<void> {
    const sum = what.sha256 ? String(what.sha256) : undefined;
    return this.run({ image, state: "fetching", done: 0, total: 0, again: () => this.fetch(image, what) }, (note) =>
      this.watch(api.fetchImage(what), async () => {
        const r = await api.received(image, { sha256: sum });
        note(r.checked > 0 ? { state: "checking", done: r.checked, total: r.bytes } : { done: r.bytes });
      }),
    );
  }

  /** Takes a finished transfer from the list. */
  forget(image: string): void {
    this.all.delete(image);
    this.changed();
  }

  /** Whether something would be lost with the page. */
  get busy(): boolean {
    return [...this.all.values()].some(isOpen);
  }

  /** Waits for sent, and calls seen from time to time until then. */
  private async watch(sent: Promise<unknown>, seen: () => Promise<void>): Promise<void> {
    const timer = setInterval(() => void seen().catch(() => undefined), look);
    try {
      await sent;
    } finally {
      clearInterval(timer);
    }
  }

  private async run(t: Transfer, work: (note: (now: Partial<Transfer>) => void) => Promise<void>): Promise<void> {
    if (this.all.has(t.image) && isOpen(this.all.get(t.image)!)) throw new Refused(0, `Image ${t.image} is on its way already.`);
    const note = (now: Partial<Transfer>) => {
      // A look that was under way when the transfer ended comes too late.
      const was = this.all.get(t.image);
      if (was && isOpen(was)) this.put({ ...was, ...now });
    };
    this.put(t);
    try {
      await work(note);
      note({ state: "done" });
    } catch (e) {
      const why = e instanceof Refused ? e : new Refused(0, String(e));
      note({ state: "failed", why });
      throw why;
    }
  }

  private put(t: Transfer): void {
    this.all.set(t.image, t);
    this.changed();
  }
}
