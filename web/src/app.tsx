import { useEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
import type { MachineView } from "./api";
import { Command } from "./command";
import { Header } from "./header";
import { MachineRow } from "./machines";
import { OperationPanel, OperationRow } from "./operations";
import { MachinePanel } from "./panel";
import { tone } from "./phases";
import type { Tone } from "./phases";
import { standing } from "./steps";
import type { Store } from "./store";
import { ago, at, span } from "./text";

/** Draws again at each change of the store, and each second for the clocks. */
function useStore(store: Store): void {
  const [, draw] = useReducer<number, void>((n) => n + 1, 0);
  useEffect(() => {
    const stop = store.subscribe(() => draw());
    const tick = setInterval(() => draw(), 1000);
    return () => {
      stop();
      clearInterval(tick);
    };
  }, [store]);
}

interface Choice {
  kind: "" | "machines" | "operations";
  name: string;
}

function chosen(): Choice {
  const m = /^#\/(machines|operations)\/(.+)$/.exec(location.hash);
  try {
    return m ? { kind: m[1] as Choice["kind"], name: decodeURIComponent(m[2]!) } : { kind: "", name: "" };
  } catch {
    return { kind: "", name: "" };
  }
}

function useChosen(): Choice {
  const [name, set] = useState(chosen);
  useEffect(() => {
    const f = () => set(chosen());
    addEventListener("hashchange", f);
    return () => removeEventListener("hashchange", f);
  }, []);
  return name;
}

const filters: [Tone, string][] = [
  ["waiting", "Waiting"],
  ["working", "Working"],
  ["failed", "Failed"],
  ["done", "Ready"],
  ["idle", "Idle"],
];

export function App({ store }: { store: Store }) {
  useStore(store);
  const { kind, name } = useChosen();
  const panel = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // Where the panel is below the list, choosing a machine leads to it.
    if (name && matchMedia("(max-width: 60rem)").matches) panel.current?.scrollIntoView();
  }, [name, store.loaded]);
  const [only, setOnly] = useState<Tone | "">("");
  const [text, setText] = useState("");

  const all = [...store.machines.values()].sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
  const counts = new Map<Tone, number>();
  for (const m of all) counts.set(tone(m), (counts.get(tone(m)) ?? 0) + 1);
  const waiting = all.filter((m) => tone(m) === "waiting");
  const find = text.trim().toLowerCase();
  const shown = all.filter((m) => (!only || tone(m) === only) && (!find || matches(m, find)));
  const operations = [...store.operations.values()].sort((a, b) => at(b.started) - at(a.started));
  const asking = operations.filter((o) => standing(o, store.machines) === "waiting");
  // Without a choice the panel shows what most likely matters.
  const operation = kind === "operations" ? store.operations.get(name) : kind === "" ? (asking[0] ?? operations.find((o) => standing(o, store.machines) === "working")) : undefined;
  const pick = operation || kind === "operations" ? undefined : (store.machines.get(name) ?? (name ? undefined : (waiting[0] ?? all.find((m) => tone(m) === "working") ?? all[0])));
  const now = store.now();

  const awaited = new Set([...waiting.map((m) => m.name), ...asking.filter((o) => o.question).map((o) => o.id)]);
  const title = awaited.size > 0 ? `(${awaited.size}) waiting · Ingot` : "Ingot";
  useEffect(() => {
    document.title = title;
  }, [title]);
  const announcement = useMemo(() => [...awaited].map((n) => `${n} waits for you.`).join(" "), [[...waiting.map((m) => m.workflow?.question?.id ?? m.name), ...asking.map((o) => o.question?.id)].join()]);

  return (
    <div class="page" data-connection={store.link}>
      <Header store={store} />
      <Banner store={store} />
      <div class="sr" role="status">
        {announcement}
      </div>
      {store.link === "denied" ? (
        <Denied />
      ) : !store.loaded ? (
        <p class="loading">Loading…</p>
      ) : all.length === 0 && operations.length === 0 ? (
        <Empty store={store} />
      ) : (
        <main class="columns">
          <section class="list" aria-label="Operations and machines">
            {operations.length > 0 && (
              <ul class="machines operations">
                {operations.slice(0, 5).map((o) => (
                  <OperationRow key={o.run} operation={o} store={store} now={now} chosen={o.run === operation?.run} />
                ))}
              </ul>
            )}
            {all.length > 1 && (
              <div class="filters">
                <button type="button" class="chip" aria-pressed={only === ""} onClick={() => setOnly("")}>
                  All <b>{all.length}</b>
                </button>
                {filters
                  .filter(([t]) => counts.get(t) || only === t)
                  .map(([t, label]) => (
                    <button key={t} type="button" class={`chip ${t}`} aria-pressed={only === t} onClick={() => setOnly(only === t ? "" : t)}>
                      {label} <b>{counts.get(t) ?? 0}</b>
                    </button>
                  ))}
                {all.length > 8 && <input type="search" aria-label="Find a machine" placeholder="name, address, label" value={text} onInput={(e) => setText(e.currentTarget.value)} />}
              </div>
            )}
            <ul class="machines">
              {shown.map((m) => (
                <MachineRow key={m.name} machine={m} store={store} now={now} chosen={m.name === pick?.name} />
              ))}
            </ul>
            {shown.length === 0 && <p class="quiet">{all.length === 0 ? "No machines yet." : "No machine matches."}</p>}
            <SeenList store={store} now={now} />
          </section>
          <div ref={panel}>
            {operation ? (
              <OperationPanel key={operation.run} operation={operation} store={store} now={now} />
            ) : pick ? (
              <MachinePanel key={pick.name} machine={pick} store={store} now={now} />
            ) : (
              <section class="panel">
                <p>{kind === "operations" ? `There is no operation with the run “${name}” here any more.` : name ? `There is no machine named “${name}”.` : "Choose something on the left."}</p>
              </section>
            )}
          </div>
        </main>
      )}
    </div>
  );
}

function matches(m: MachineView, find: string): boolean {
  const words = [m.name, m.template, m.image, m.workflow?.phase, ...Object.entries(m.labels ?? {}).map(([k, v]) => `${k}=${v}`)];
  for (const i of m.interfaces ?? []) words.push(i.mac, i.address, i.hostname);
  return words.some((w) => w?.toLowerCase().includes(find));
}

function Banner({ store }: { store: Store }) {
  if (store.link !== "lost") return null;
  const left = Math.max(0, (store.due - Date.now()) / 1000);
  return (
    <div class="banner" role="alert">
      <span>
        <b>Connection lost.</b> {store.loaded ? "What is shown may be old. " : ""}Installations go on without this page. {left > 0.5 ? `Trying again in ${span(left)}.` : "Trying again…"}
      </span>
      <button type="button" onClick={() => store.again()}>
        Try now
      </button>
    </div>
  );
}

function Denied() {
  return (
    <main class="alone">
      <h2>Log in first</h2>
      <p>This browser has no session. Make a one-time link on the server and open it here:</p>
      <Command text="ingot login-link" />
      <p class="quiet">Or open the link that “ingot serve” printed, if it has not been used. This page goes on by itself as soon as you are logged in.</p>
    </main>
  );
}

function Empty({ store }: { store: Store }) {
  return (
    <main class="alone" data-empty>
      <h2>No machines yet</h2>
      <p>Push a hardware file, or add one machine by its MAC address:</p>
      <Command text="ingot machine push --file hardware.yaml" />
      <Command text="ingot machine add --help" />
      <p class="quiet">It appears here at once; nothing is booted or written before you provision it.</p>
      <SeenList store={store} now={store.now()} />
    </main>
  );
}

/** Unknown machines that asked for an address. */
function SeenList({ store, now }: { store: Store; now: number }) {
  if (store.seen.length === 0) return null;
  const seen = [...store.seen].sort((a, b) => at(b.last) - at(a.last));
  return (
    <details class="seen" open={store.machines.size === 0}>
      <summary>
        {seen.length} unknown {seen.length === 1 ? "machine asks" : "machines ask"} for an address
      </summary>
      <ul>
        {seen.slice(0, 20).map((s) => (
          <li key={s.mac}>
            <code>{s.mac}</code> <span class="quiet">{ago(at(s.last), now)}</span>
          </li>
        ))}
      </ul>
      <Command text="ingot machine seen" />
    </details>
  );
}
