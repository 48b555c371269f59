import { useEffect, useState } from "preact/hooks";
import { api } from "./api";
import type { Event, MachineView, Workflow } from "./api";
import { Bar } from "./bar";
import { Command } from "./command";
import { Decision } from "./decision";
import { Ask, RefusedNote, useDeeds } from "./deed";
import { web } from "./header";
import { Log } from "./log";
import { Sign, Window } from "./machines";
import { doing, manual, over, runs, stepsOf, tells, tone } from "./phases";
import type { Step } from "./phases";
import type { Store } from "./store";
import { newer } from "./store";
import { ago, at, bytes, clock, span } from "./text";

/** Keeps the events of a run (or of a machine without one), and the run's complete record. */
function useStory(m: MachineView, store: Store): { workflow?: Workflow; events: Event[] } {
  const [full, setFull] = useState<Workflow>();
  const [events, setEvents] = useState<Event[]>([]);
  const run = m.workflow?.run ?? "";
  const open = m.workflow ? !over(m.workflow) : false;
  const live = store.link === "live";
  useEffect(() => {
    if (!live) return;
    let gone = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const load = async () => {
      try {
        if (run) {
          const w = await api.workflow(m.name);
          if (!gone && w.run === run) setFull(w);
        }
        const e = run ? await api.runEvents(run, 0) : await api.machineEvents(m.name, 0);
        if (!gone) setEvents(e);
      } catch {
        // The stream tells of a lost server; what was loaded stays in view.
      }
      // What the wire saw is no change of the record.
      if (!gone && open) timer = setTimeout(() => void load(), 4000);
    };
    // Changes come in bursts.
    timer = setTimeout(() => void load(), 150);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [m.name, run, open, live, m.workflow?.updated, m.workflow?.phase, m.lastEvent?.seq]);
  const w = m.workflow ?? undefined;
  return { workflow: w && full?.run === w.run ? newer(full, w) : w, events: run === full?.run || !run ? events : [] };
}

export function MachinePanel({ machine: m, store, now }: { machine: MachineView; store: Store; now: number }) {
  const { workflow: w, events } = useStory(m, store);
  const t = tone({ ...m, workflow: w });
  const mac = m.interfaces?.find((i) => !i.disableNetboot)?.mac;
  return (
    <section class="panel" aria-labelledby="panel-name" data-panel={m.name} data-phase={w?.phase ?? ""} data-state={w?.state ?? ""}>
      <div class="panel-head">
        <h2 id="panel-name">{m.name}</h2>
        <Window machine={m} now={now} />
      </div>
      <dl class="facts">
        {m.interfaces?.slice(0, 4).map((i) => (
          <div key={i.mac}>
            <dt>{i.mac}</dt>
            <dd>
              {[i.address, i.hostname !== m.name && i.hostname, i.uefi ? "UEFI" : "BIOS", i.arch, i.vlan && `VLAN ${i.vlan}`].filter(Boolean).join(" · ")}
            </dd>
          </div>
        ))}
        <div>
          <dt>Power</dt>
          <dd>{manual(m) ? (m.bmc?.driver === "wol" ? "on by wake-on-LAN, off by hand" : "by hand") : [m.bmc!.driver, m.bmc!.host].filter(Boolean).join(" · ")}</dd>
        </div>
        {(w?.image || m.image) && (
          <div>
            <dt>Image</dt>
            <dd>{w?.image || m.image}</dd>
          </div>
        )}
        {(w?.template || m.template) && (
          <div>
            <dt>Template</dt>
            <dd>{w?.template || m.template}</dd>
          </div>
        )}
        {w?.disk && (
          <div>
            <dt>Disk</dt>
            <dd>
              {bytes(w.disk.size)} {w.disk.model} · {w.disk.serial || w.disk.wwn || w.disk.path}
            </dd>
          </div>
        )}
        {(m.protectedDisks ?? []).map((d) => (
          <div key={`${d.serial}/${d.wwn}`}>
            <dt>Protected disk</dt>
            <dd>{d.serial || d.wwn}</dd>
          </div>
        ))}
        {Object.entries(m.labels ?? {}).map(([k, v]) => (
          <div key={k}>
            <dt>{k}</dt>
            <dd>{v}</dd>
          </div>
        ))}
      </dl>

      <div class={`state ${t}`}>
        <p class="doing">
          <Sign tone={t} /> {doing({ ...m, workflow: w }, now)}
        </p>
        {w?.message && t !== "waiting" && <p class={t === "failed" ? "text failure" : "text"} data-message>{w.message}</p>}
        {w && t === "waiting" && (w.question ? <Decision key={w.question.id} question={w.question} now={now} send={(choice, s) => api.decide(w.run, w.question!.id, choice, s)} /> : <p class="text">{w.message}</p>)}
        {w?.next && (
          <div class="next">
            <span class="quiet">Next</span> <Command text={w.next} />
          </div>
        )}
        {!w && (
          <div class="next">
            <span class="quiet">Next</span> <Command text={`ingot machine provision ${m.name}${m.image ? "" : " --image debian-12"} --wait`} />
          </div>
        )}
        {m.standing && m.standing.reason && m.standing.reason !== w?.message && (
          <p class={m.standing.state === "quarantined" ? "text failure" : "text quiet"} data-standing={m.standing.state}>
            {m.standing.reason}
          </p>
        )}
        {w && <Deeds machine={m} workflow={w} />}
        <Service machine={m} workflow={w} />
        {w?.evidence === "weak" && <p class="quiet">Evidence: weak. The template has no phone-home of the installed system, so its start could not be proven.</p>}
      </div>

      {w && <Steps steps={stepsOf(w, t, events, now)} />}
      {w && <Actions workflow={w} store={store} now={now} />}
      {w && (w.actions?.length ?? 0) > 0 && <Log workflow={w} />}
      <Events events={events} now={now} />
      {w && <Links workflow={w} store={store} machine={m} mac={mac} now={now} />}
    </section>
  );
}

function Deeds({ machine: m, workflow: w }: { machine: MachineView; workflow: Workflow }) {
  const deeds = useDeeds();
  const off = deeds.busy !== "";
  const own = w.type === undefined || w.type !== "BMCJob";
  const power = !over(w) && w.phase === "power" && manual(m);
  const retry = over(w) && w.state !== "SUCCESS" && w.type !== "Inspect" && w.type !== "BMCJob";
  const done = w.type !== "Decommission" && (w.actions ?? []).some((a) => a.state === "SUCCESS");
  const cancel = !over(w) && own && w.phase !== "disarm";
  if (!power && !retry && !cancel) return null;
  return (
    <>
      <div class="buttons">
        {power && <Ask choice="powered-on" kind="primary" label="It is switched on" disabled={off} onDo={() => deeds.run("on", () => api.poweredOn(w.run))} />}
        {retry && done && <Ask choice="retry-failed-step" kind="primary" label="Retry from the failed step" sure="Retry" note={`Boots ${m.name} from the network again.`} disabled={off} onDo={() => deeds.run("retry", () => api.retry(w.run, "failed-step"))} />}
        {retry && <Ask choice="retry-start" kind={done ? undefined : "primary"} label="Retry from the start" sure={w.type === "Decommission" ? "Wipe it" : "Overwrite it"} note={w.type === "Decommission" ? `Wipes all disks of ${m.name} again.` : `Installs ${m.name} again: its disk is overwritten.`} disabled={off} onDo={() => deeds.run("retry", () => api.retry(w.run, "start"))} />}
        {cancel && <Ask choice="cancel" label="Cancel" sure="Cancel the run" note="Stop the agent and close netboot?" disabled={off} onDo={() => deeds.run("cancel", () => api.cancel(w.run))} />}
      </div>
      <RefusedNote deeds={deeds} />
    </>
  );
}

/** What may be done to a machine that no run has: begin anew, or end its service. */
function Service({ machine: m, workflow: w }: { machine: MachineView; workflow?: Workflow }) {
  const deeds = useDeeds();
  const off = deeds.busy !== "";
  if (!w || !over(w)) return null;
  const quarantined = m.standing?.state === "quarantined";
  return (
    <details class="service" open={quarantined}>
      <summary class="quiet">Service</summary>
      <div class="buttons">
        {quarantined && <Ask choice="release" kind="primary" label="Release it" sure="It is in order" note={`You have seen to it yourself: runs may write to ${m.name} again.`} disabled={off} onDo={() => deeds.run("release", () => api.release(m.name))} />}
        {!m.standing && <Ask choice="reprovision" label="Wipe and install again" sure="Wipe it" note={`What is on the disk of ${m.name} is lost; its own template is installed.`} disabled={off} onDo={() => deeds.run("reprovision", () => api.reprovision(m.name))} />}
        {m.standing?.state !== "available" && <Ask choice="decommission" label="Decommission" sure="Wipe all disks" note={`Wipes every disk of ${m.name} that is not protected, purges its secrets, releases its addresses and switches it off.`} disabled={off} onDo={() => deeds.run("decommission", () => api.decommission(m.name))} />}
      </div>
      <RefusedNote deeds={deeds} />
    </details>
  );
}

const words: Record<Step["state"], string> = { done: "done", now: "now", waiting: "waits for a person", failed: "stopped here", todo: "not yet" };
const marks: Record<Step["state"], string> = { done: "✓", now: "", waiting: "?", failed: "✕", todo: "" };

function Steps({ steps }: { steps: Step[] }) {
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
          <span class="took">{s.took !== undefined && s.took >= 1 ? span(s.took) : "\u00a0"}</span>
        </li>
      ))}
    </ol>
  );
}

const states: Record<string, string> = { PENDING: "pending", RUNNING: "running", SUCCESS: "done", FAILED: "failed", TIMEOUT: "out of time", STOPPED: "stopped" };

function Actions({ workflow: w, store, now }: { workflow: Workflow; store: Store; now: number }) {
  const actions = w.actions ?? [];
  if (actions.length === 0) return null;
  return (
    <section aria-label="Actions">
      <h3>Actions</h3>
      <ol class="actions">
        {actions.map((a, i) => {
          const active = runs(a) && !over(w);
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

function Events({ events, now }: { events: Event[]; now: number }) {
  if (events.length === 0) return null;
  const newest = events.slice(-200).reverse();
  return (
    <details class="events" open>
      <summary>
        <h3>Events</h3> <span class="quiet">newest first</span>
      </summary>
      <ol>
        {newest.map((e) => (
          <li key={e.seq} data-event={e.kind}>
            <time dateTime={e.at} title={ago(at(e.at), now)}>
              {clock(at(e.at), now)}
            </time>
            <span class="kind">{e.kind}</span>
            <span>
              {tells(e)}
              {e.by && <span class="quiet"> by {e.by}</span>}
            </span>
          </li>
        ))}
      </ol>
    </details>
  );
}

function Links({ workflow: w, store, machine, mac, now }: { workflow: Workflow; store: Store; machine: MachineView; mac?: string; now: number }) {
  const ui = web(store.status?.temporal?.ui);
  const id = w.id || `machine/${w.machine}`;
  return (
    <footer class="links">
      <p>
        {ui && (
          <a href={`${ui}/namespaces/default/workflows/${encodeURIComponent(id)}/${encodeURIComponent(w.run)}`} target="_blank" rel="noreferrer" data-temporal>
            This run in the Temporal UI ↗
          </a>
        )}
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

