import { useEffect, useReducer, useRef, useState } from "preact/hooks";
import { login, Refused } from "./api";
import { ApplyFile } from "./apply";
import { Statistics } from "./charts";
import { Command } from "./command";
import { Idle, RefusedNote, useRequests } from "./request";
import { Header } from "./header";
import { RunPanel } from "./history";
import { Images } from "./images";
import { InstallMany } from "./install-many";
import { arrange } from "./list";
import { MachineTable } from "./machines";
import { OperationPanel, OperationRow, Operations } from "./operations";
import { MachinePanel } from "./panel";
import type { Tone } from "./phases";
import { AddMachine, EditMachine } from "./machine-form";
import { SameQuestions } from "./many";
import { PowerOn } from "./power";
import { pathTo, tabOf, usePlace } from "./route";
import type { Place } from "./route";
import { standing } from "./steps";
import type { Store } from "./store";
import { Templates } from "./templates";
import { Tokens } from "./tokens";
import { ago, at, clock, span } from "./text";
import type { MachineView, Operation } from "./types";
import { Side } from "./side";

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

const filters: [Tone, string][] = [
  ["waiting", "Waiting"],
  ["retrying", "Trying again"],
  ["failed", "Failed"],
  ["working", "Working"],
  ["done", "Done"],
  ["idle", "Idle"],
];

/** Where only the list or only the panel has room. */
const narrow = () => matchMedia("(max-width: 60rem)").matches;

export function App({ store }: { store: Store }) {
  useStore(store);
  const place = usePlace();
  const tab = tabOf(place);
  const [only, setOnly] = useState<Tone | "">("");
  const [text, setText] = useState("");
  const now = store.now();

  const list = arrange(store.names, store.machines, store.tones, only, text.trim().toLowerCase());
  const operations = [...store.operations.values()].sort((a, b) => at(b.started) - at(a.started));
  const asking = operations.filter((o) => standing(o, store.machines) === "waiting");
  const shown = usePick(store, place, operations, asking, list.rows);
  const all = store.machines.size;

  const questions = asking.filter((o) => o.question).length;
  const awaited = list.counts.waiting + questions;
  const title = awaited > 0 ? `(${awaited}) waiting · Ingot` : "Ingot";
  useEffect(() => {
    document.title = title;
  }, [title]);

  return (
    <div class="page" data-connection={store.link} data-chosen={place.name ? place.view : ""}>
      <Header store={store} tab={tab} />
      <Banner store={store} />
      <div class="sr" role="status">
        {awaited > 0 && `${awaited} ${awaited === 1 ? "waits" : "wait"} for you.`}
      </div>
      {store.link === "denied" ? (
        <Denied store={store} />
      ) : !store.loaded ? (
        <p class="loading">Loading…</p>
      ) : tab === "images" ? (
        <Images store={store} place={place} now={now} />
      ) : tab === "templates" ? (
        <Templates store={store} place={place} now={now} />
      ) : tab === "tokens" ? (
        <Tokens store={store} now={now} />
      ) : tab === "operations" ? (
        <Operations store={store} run={place.name} now={now} />
      ) : tabOf(place) === "statistics" ? (
        <Statistics store={store} now={now} />
      ) : all === 0 && operations.length === 0 && place.view !== "new" ? (
        <Empty store={store} />
      ) : (
        <main class="columns">
          <section class="list" aria-label="Operations and machines">
            {operations.length > 0 && (
              <ul class="operations">
                {operations.slice(0, 5).map((o) => (
                  <OperationRow key={o.run} operation={o} store={store} now={now} chosen={o.run === shown.operation?.run} />
                ))}
              </ul>
            )}
            <Idle.Provider value={store.idle}>
              <PowerOn machines={list.toPower} />
              <SameQuestions groups={list.equal} />
            </Idle.Provider>
            {all > 1 && (
              <div class="filters">
                <button type="button" class="chip" aria-pressed={only === ""} onClick={() => setOnly("")}>
                  All <b>{all}</b>
                </button>
                {filters
                  .filter(([t]) => list.counts[t] || only === t)
                  .map(([t, label]) => (
                    <button key={t} type="button" class={`chip ${t}`} aria-pressed={only === t} onClick={() => setOnly(only === t ? "" : t)}>
                      {label} <b>{list.counts[t]}</b>
                    </button>
                  ))}
                {all > 8 && <input type="search" aria-label="Find a machine" placeholder="name, address, label" value={text} onInput={(e) => setText(e.currentTarget.value)} />}
              </div>
            )}
            {!store.idle && (
              <p class="acts">
                <a href={pathTo("new", "machine")}>Add a machine</a>
                <a href={pathTo("new", "file")}>Add from a file</a>
                {all > 0 && <a href={pathTo("new", "installation")}>Install many</a>}
              </p>
            )}
            {list.rows.length > 0 ? <MachineTable rows={list.rows} now={now} chosen={shown.machine?.name ?? ""} /> : <p class="quiet">{all === 0 ? "No machines yet." : "No machine matches."}</p>}
            <SeenList store={store} now={now} />
          </section>
          <Side store={store} back="#/" all="All machines">
            {place.view === "runs" ? (
              <RunPanel key={place.name} run={place.name} store={store} now={now} />
            ) : place.view === "new" && place.name === "installation" ? (
              <InstallMany />
            ) : place.view === "new" && place.name === "file" ? (
              <ApplyFile />
            ) : place.view === "new" ? (
              <AddMachine key={place.act} store={store} mac={place.act} />
            ) : shown.machine && place.act === "edit" ? (
              <EditMachine key={shown.machine.name} name={shown.machine.name} />
            ) : shown.operation ? (
              <OperationPanel key={shown.operation.run} operation={shown.operation} store={store} now={now} />
            ) : shown.machine ? (
              <MachinePanel key={shown.machine.name} machine={shown.machine} store={store} now={now} />
            ) : (
              <section class="panel">
                <p>{place.name ? `There is no machine named “${place.name}”.` : "Choose something on the left."}</p>
              </section>
            )}
          </Side>
        </main>
      )}
    </div>
  );
}

/** What the panel shows: what was chosen, or else what most likely matters when the page is opened, and that stays. */
function usePick(store: Store, place: Place, operations: Operation[], asking: Operation[], rows: MachineView[]): { operation?: Operation; machine?: MachineView } {
  const first = useRef<{ view: string; name: string } | undefined>(undefined);
  const at = ({ view, name }: { view: string; name: string }) => (view === "operations" ? { operation: store.operations.get(name) } : { machine: store.machines.get(name) });
  if (place.name) return at(place);
  if (narrow()) return {};
  if (!first.current || !Object.values(at(first.current))[0]) {
    const o = asking[0] ?? operations.find((x) => standing(x, store.machines) === "working");
    first.current = o ? { view: "operations", name: o.run } : rows[0] ? { view: "machines", name: rows[0].name } : undefined;
  }
  return first.current ? at(first.current) : {};
}

function Banner({ store }: { store: Store }) {
  if (store.outdated)
    return (
      <div class="banner" role="alert" data-outdated>
        <span>
          <b>The server has been upgraded</b> to {store.status?.version}; this page is of the version before.
        </span>
        <button type="button" onClick={() => location.reload()}>
          Reload
        </button>
      </div>
    );
  if (store.link !== "lost") return null;
  const left = Math.max(0, (store.due - Date.now()) / 1000);
  return (
    <div class="banner" role="alert">
      <span>
        <b>Connection lost.</b> {store.loaded ? `What is shown was true at ${clock(store.now(), store.now())}. ` : ""}Installations go on without this page. {left > 0.5 ? `Trying again in ${span(left)}.` : "Trying again…"}
      </span>
      <button type="button" onClick={() => store.again()}>
        Try now
      </button>
    </div>
  );
}

function Denied({ store }: { store: Store }) {
  const requests = useRequests();
  const [token, setToken] = useState("");
  return (
    <main class="alone">
      <h2>Log in first</h2>
      <form
        class="install"
        onSubmit={(e) => {
          e.preventDefault();
          requests.run("login", async () => {
            if (!(await login(token.trim()))) throw new Refused(0, "This token is unknown, has expired, or does not open the page.");
            store.again();
          });
        }}
      >
        <label>
          Token <input name="token" type="password" autocomplete="current-password" value={token} onInput={(e) => setToken(e.currentTarget.value)} />
        </label>
        <div class="buttons">
          <button class="primary" disabled={requests.busy !== ""}>
            Log in
          </button>
        </div>
        <RefusedNote requests={requests} />
      </form>
      <p>Or make a one-time link on the server and open it here:</p>
      <Command text="ingot login-link" />
    </main>
  );
}

function Empty({ store }: { store: Store }) {
  return (
    <main class="alone" data-empty>
      <h2>No machines yet</h2>
      <p>
        {!store.idle && (
          <>
            <a href={pathTo("new", "machine")}>Add a machine</a>, <a href={pathTo("new", "file")}>add many from a file</a>, or push
          </>
        )}
        {store.idle && "Push"} a hardware file:
      </p>
      <Command text="ingot machine push --file hardware.yaml" />
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
            <code>{s.mac}</code> <span class="quiet">{ago(at(s.last), now)}</span> {!store.idle && <a href={pathTo("new", "machine", s.mac)} aria-label={`Add ${s.mac}`}>Add</a>}
          </li>
        ))}
      </ul>
      <Command text="ingot machine seen" />
    </details>
  );
}
