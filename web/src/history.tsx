import { useEffect, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { api } from "./api";
import { Log } from "./log";
import { Sign } from "./machines";
import { isOver, stepsOf, tone } from "./phases";
import { pathTo } from "./route";
import { Actions, Events, Links, Steps } from "./run";
import type { Store } from "./store";
import { at, clock, span } from "./text";
import type { Event, Workflow } from "./types";

/** How long what is shown stays as it is, ms. */
const again = 5_000;

/** Loads while it is shown, and again every few seconds as long as more can come. */
export function useLoaded<T>(load: (() => Promise<T>) | undefined, more: (t: T) => boolean, keys: unknown[]): { got?: T; failed: string } {
  const [got, setGot] = useState<T>();
  const [failed, setFailed] = useState("");
  useEffect(() => {
    if (!load) return;
    let gone = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const look = async () => {
      let next = true;
      try {
        const t = await load();
        if (gone) return;
        setGot(() => t);
        setFailed("");
        next = more(t);
      } catch (e) {
        if (!gone) setFailed(e instanceof Error ? e.message : String(e));
      }
      if (!gone && next) timer = setTimeout(() => void look(), again);
    };
    void look();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, keys);
  return { got, failed };
}

/** A part of the panel that is loaded when it is opened. */
function Part<T>({ id, title, live, load, children }: { id: string; title: string; live: boolean; load: () => Promise<T>; children: (t: T) => ComponentChildren }) {
  const [open, setOpen] = useState(false);
  const { got, failed } = useLoaded(open && live ? load : undefined, () => true, [id, open, live]);
  return (
    <details class="events" data-part={id} onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>
        <h3>{title}</h3>
      </summary>
      {failed && (
        <p class="failure" role="alert">
          {failed}
        </p>
      )}
      {got !== undefined && children(got)}
    </details>
  );
}

/** What is known of a machine apart from its latest run: its other runs, its syslog, its last packets. */
export function Past({ machine, store, now }: { machine: string; store: Store; now: number }) {
  const live = store.link === "live";
  return (
    <>
      <Part id="runs" title="Runs" live={live} load={() => api.runs(machine)}>
        {(runs) => (runs.length === 0 ? <p class="quiet">None yet.</p> : <Runs runs={runs} now={now} />)}
      </Part>
      <Part id="syslog" title="Syslog" live={live} load={() => api.syslog(machine)}>
        {(lines) =>
          lines.length === 0 ? (
            <p class="quiet">It has sent nothing.</p>
          ) : (
            <ol tabIndex={0} aria-label="Syslog, newest first">
              {lines.map((l) => (
                <li key={l.seq} data-syslog={l.severity}>
                  <time dateTime={l.at}>{clock(at(l.at), now)}</time>
                  <span class="kind">{[l.severity, l.program].filter(Boolean).join(" ")}</span>
                  <span>{l.text}</span>
                </li>
              ))}
            </ol>
          )
        }
      </Part>
      <Part id="packets" title="Last packets" live={live} load={() => api.why(machine)}>
        {(why) => (
          <>
            {(why.heard ?? []).length === 0 && <p class="quiet">None since the server has started.</p>}
            <ol tabIndex={0} aria-label="Packets, newest first">
              {(why.heard ?? []).slice().reverse().map((x, i) => (
                <li key={i} data-packet>
                  <time dateTime={x.at}>{clock(at(x.at), now)}</time>
                  <span class="kind">{x.where}</span>
                  <span>
                    {x.request} → {x.answer}
                  </span>
                </li>
              ))}
            </ol>
            <p class="quiet">What it would boot now: {why.verdict}</p>
            <ul class="reasons">
              {(why.reasons ?? []).map((r) => (
                <li key={r}>{r}</li>
              ))}
            </ul>
          </>
        )}
      </Part>
    </>
  );
}

const outcomes: Record<string, string> = { SUCCESS: "done", FAILED: "failed", TIMEOUT: "out of time", CANCELLED: "cancelled" };

/** Runs of machines, each with a link. */
export function Runs({ runs, now, machines }: { runs: Workflow[]; now: number; machines?: boolean }) {
  return (
    <ul class="runs">
      {runs.map((w) => (
        <li key={w.run} data-run={w.run}>
          <Sign tone={tone({ name: w.machine, workflow: w })} />{" "}
          <a href={pathTo("runs", w.run)}>
            {w.type ?? "Provision"}
            {machines && ` of ${w.machine}`}
          </a>{" "}
          {outcomes[w.state ?? ""] ?? "under way"}
          <span class="quiet">
            {w.image && ` · ${w.image}`} · {clock(at(w.started), now)}
            {at(w.ended) > 0 && ` · took ${span((at(w.ended) - at(w.started)) / 1000)}`}
          </span>
        </li>
      ))}
    </ul>
  );
}

/** A run of the past: what it did, its logs and its events. */
export function RunPanel({ run, store, now }: { run: string; store: Store; now: number }) {
  const live = store.link === "live";
  const load = async (): Promise<{ w: Workflow; events: Event[] }> => {
    const [w, events] = await Promise.all([api.run(run), api.runEvents(run, 0)]);
    return { w, events };
  };
  const { got, failed } = useLoaded(live ? load : undefined, ({ w }) => !isOver(w), [run, live]);
  if (!got) return <section class="panel">{failed ? <p class="failure">{failed}</p> : <p class="quiet">Loading…</p>}</section>;
  const { w, events } = got;
  const t = tone({ name: w.machine, workflow: w });
  return (
    <section class="panel" aria-labelledby="panel-name" data-run-panel={w.run} data-state={w.state}>
      <div class="panel-head">
        <h2 id="panel-name">
          {w.type ?? "Provision"} of {w.machine}
        </h2>
        <a href={pathTo("machines", w.machine)}>{w.machine}</a>
      </div>
      <div class={`state ${t}`}>
        <p class="doing">
          <Sign tone={t} /> {outcomes[w.state ?? ""] ?? "under way"} <span class="quiet">{w.image}</span>
        </p>
        {w.message && <p class={t === "failed" ? "text failure" : "text"}>{w.message}</p>}
      </div>
      <Steps steps={stepsOf(w, t, events, now)} />
      <Actions workflow={w} store={store} now={now} />
      {(w.actions?.length ?? 0) > 0 && <Log workflow={w} />}
      <Events events={events} now={now} />
      <Links workflow={w} store={store} machine={{ name: w.machine }} now={now} />
    </section>
  );
}
