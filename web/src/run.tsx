import { Bar } from "./bar";
import { Command } from "./command";
import { isOver, isRunning, eventText } from "./phases";
import { TemporalLink } from "./temporal";
import type { Step } from "./phases";
import type { Store } from "./store";
import { ago, at, clock, roughly, span } from "./text";
import type { Event, MachineView, Workflow } from "./types";

const words: Record<Step["state"], string> = { done: "done", now: "now", waiting: "waits for you", failed: "stopped here", todo: "not yet" };
const marks: Record<Step["state"], string> = { done: "✓", now: "", waiting: "?", failed: "✕", todo: "" };

export function Steps({ steps }: { steps: Step[] }) {
  if (steps.length === 0) return null;
  return (
    <ol class="steps" aria-label="Phases of the run">
      {steps.map((s) => (
        <li key={s.id} class={s.state} data-step={s.id} data-step-state={s.state} title={s.means} aria-current={s.state === "now" || s.state === "waiting" ? "step" : undefined}>
          <span class="dot" aria-hidden="true">
            {marks[s.state]}
          </span>
          <span class="label">
            {s.label}
            <span class="sr">: {words[s.state]}</span>
          </span>
          <span class="took" title={s.took === undefined ? undefined : span(s.took)}>
            {s.took !== undefined && s.took >= 1 ? roughly(s.took) : "\u00a0"}
          </span>
        </li>
      ))}
    </ol>
  );
}

const states: Record<string, string> = { PENDING: "pending", RUNNING: "running", SUCCESS: "done", FAILED: "failed", TIMEOUT: "out of time", STOPPED: "stopped" };

export function Actions({ workflow: w, store, now }: { workflow: Workflow; store: Store; now: number }) {
  const actions = w.actions ?? [];
  if (actions.length === 0) return null;
  return (
    <section aria-label="Actions">
      <h3>Actions</h3>
      <ol class="actions">
        {actions.map((a, i) => {
          const active = isRunning(a) && !isOver(w);
          const took = active && at(a.startedAt) ? (now - at(a.startedAt)) / 1000 : (a.seconds ?? 0);
          const bad = a.state === "FAILED" || a.state === "TIMEOUT";
          return (
            <li key={i} class={active ? "running" : a.state.toLowerCase()} data-action={a.name} data-action-state={a.state} data-attempt={a.attempt ?? 0}>
              <div class="action-top">
                <span class="number">{i + 1}</span>
                <b>{a.name}</b>
                {a.image && a.image !== a.name && <span class="quiet image">{a.image}</span>}
                <span class="action-state">
                  {active ? states.RUNNING : (states[a.state] ?? a.state.toLowerCase())}
                  {(a.attempt ?? 0) > 1 && `, attempt ${a.attempt}`}
                  {took >= 1 && ` · ${span(took)}`}
                  {active && a.timeout ? <span class="quiet"> of at most {span(a.timeout)}</span> : null}
                </span>
              </div>
              {a.message && <p class={bad ? "text failure" : "text quiet"}>{a.message}</p>}
              {(active || bad || a.state === "STOPPED") && <Bar workflow={w} index={i} store={store} />}
            </li>
          );
        })}
      </ol>
    </section>
  );
}

export function Events({ events, now }: { events: Event[]; now: number }) {
  if (events.length === 0) return null;
  const newest = events.slice(-200).reverse();
  return (
    <details class="events" open>
      <summary>
        <h3>Events</h3> <span class="quiet">newest first</span>
      </summary>
      <ol tabIndex={0} aria-label="Events, newest first">
        {newest.map((e) => (
          <li key={e.seq} data-event={e.kind}>
            <time dateTime={e.at} title={ago(at(e.at), now)}>
              {clock(at(e.at), now)}
            </time>
            <span class="kind">{e.kind}</span>
            <span>
              {eventText(e)}
              {e.by && <span class="quiet"> by {e.by}</span>}
            </span>
          </li>
        ))}
      </ol>
    </details>
  );
}

export function Links({ workflow: w, store, machine, mac, now }: { workflow: Workflow; store: Store; machine: MachineView; mac?: string; now: number }) {
  const id = w.id || `machine/${w.machine}`;
  return (
    <footer class="links">
      <p>
        <TemporalLink store={store} id={id} run={w.run}>
          This run in the Temporal UI
        </TemporalLink>
      </p>
      <p class="quiet">
        {w.type ?? "Provision"} <code>{id}</code> run <code>{w.run}</code>
        {at(w.started) > 0 && <> · started {clock(at(w.started), now)}</>}
        {at(w.ended) > 0 && <> · took {span((at(w.ended) - at(w.started)) / 1000)}</>}
      </p>
      <Command text={`ingot workflow get ${machine.name}`} />
      {mac && <Command text={`ingot why ${mac}`} />}
    </footer>
  );
}

