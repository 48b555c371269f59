import { useEffect, useState } from "preact/hooks";
import { api } from "./api";
import type { Event, MachineView, Workflow } from "./types";
import { Command } from "./command";
import { Decision, offersAbort } from "./decision";
import { Ask, RefusedNote, useRequests } from "./request";
import { Past } from "./history";
import { Install } from "./install";
import { Log } from "./log";
import { Power } from "./machine-power";
import { Sign, Window } from "./machines";
import { doing, imageOf, isWeak, manual, isOver, stepsOf, tone } from "./phases";
import { pathTo } from "./route";
import { Actions, Events, Links, Steps } from "./run";
import type { Store } from "./store";
import { bytes } from "./text";

/** Keeps what the table's row does not hold: the whole machine, the complete record of its run, and events. */
function useStory(row: MachineView, store: Store): { machine: MachineView; workflow?: Workflow; events: Event[] } {
  const [whole, setWhole] = useState<MachineView>();
  const [full, setFull] = useState<Workflow>();
  const [events, setEvents] = useState<Event[]>([]);
  const run = row.workflow?.run ?? "";
  const open = row.workflow ? !isOver(row.workflow) : false;
  const live = store.link === "live";
  useEffect(() => {
    if (!live) return;
    let gone = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const load = async () => {
      let failed = false;
      try {
        const m = await api.machine(row.name);
        if (!gone) setWhole(m);
        if (run) {
          const w = await api.workflow(row.name);
          if (!gone && w.run === run) setFull(w);
        }
        const e = run ? await api.runEvents(run, 0) : await api.machineEvents(row.name, 0);
        if (!gone) setEvents(e);
      } catch {
        // The stream reports a lost server; loaded data stays visible.
        failed = true;
      }
      // Events from the network do not change the record.
      if (!gone && (open || failed)) timer = setTimeout(() => void load(), 4000);
    };
    // Changes come in bursts.
    timer = setTimeout(() => void load(), 150);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [row.name, row.updated, run, open, live, row.workflow?.updated, row.workflow?.phase]);
  // The row has the newest state of the run; the loaded record has the rest.
  const w = row.workflow ?? undefined;
  const workflow = w && full?.run === w.run ? merged(full, w) : w;
  return { machine: { ...(whole?.name === row.name ? whole : row), workflow, netboot: row.netboot, standing: row.standing }, workflow, events: run === full?.run || !run ? events : [] };
}

/** The complete record of a run with what its row says that is newer. */
function merged(full: Workflow, row: Workflow): Workflow {
  const actions = (full.actions ?? []).map((a, i) => {
    const r = row.actions?.[i];
    return r ? { ...a, state: r.state, attempt: r.attempt, startedAt: r.startedAt, done: r.done, total: r.total } : a;
  });
  // The row's message is shortened.
  const message = full.updated === row.updated ? full.message : row.message;
  return { ...full, ...row, message, actions, disk: full.disk, evidence: full.evidence, next: full.updated === row.updated ? full.next : undefined };
}

export function MachinePanel({ machine: row, store, now }: { machine: MachineView; store: Store; now: number }) {
  const { machine: m, workflow: w, events } = useStory(row, store);
  const t = tone(m);
  const image = imageOf(m);
  const mac = m.interfaces?.find((i) => !i.disableNetboot)?.mac;
  return (
    <section class="panel" aria-labelledby="panel-name" data-panel={m.name} data-phase={w?.phase ?? ""} data-state={w?.state ?? ""}>
      <div class="panel-head">
        <h2 id="panel-name">{m.name}</h2>
        {!store.idle && <a href={pathTo("machines", m.name, "edit")}>Edit</a>}
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
          <dd data-power>{manual(m) ? (m.bmc?.driver === "wol" ? "on by wake-on-LAN, off by hand" : "by hand") : [m.bmc!.driver, m.bmc!.host].filter(Boolean).join(" · ")}</dd>
        </div>
        {image && (
          <div>
            <dt>Image</dt>
            <dd>{image}</dd>
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
          <Sign tone={t} /> {doing(m, now)}
        </p>
        {t === "retrying" &&
          w?.retrying?.map((r) => (
            <p key={r} class="text" data-retrying>
              {r}
            </p>
          ))}
        {w?.message && t !== "waiting" && <p class={t === "failed" ? "text failure" : "text"} data-message>{w.message}</p>}
        {w && t === "waiting" && (w.question ? <Decision key={w.question.id} question={w.question} now={now} next={w.next} send={(choice, s) => api.decide(w.run, w.question!.id, choice, s)} /> : <p class="text">{w.message}</p>)}
        {w?.next && !(t === "waiting" && w.question) && (
          <div class="next">
            <span class="quiet">Next</span> <Command text={w.next} />
          </div>
        )}
        {!w && m.standing?.state !== "quarantined" && <Install key={m.name} machine={m} />}
        {m.standing && m.standing.reason && m.standing.reason !== w?.message && (
          <p class={m.standing.state === "quarantined" ? "text failure" : "text quiet"} data-standing={m.standing.state}>
            {m.standing.reason}
          </p>
        )}
        {w && <RunButtons machine={m} workflow={w} />}
        <Service machine={m} workflow={w} />
        <Power machine={m} />
        {w && isWeak(w) && <p class="quiet" data-evidence="weak">Evidence: weak. The template has no phone-home of the installed system, so its start could not be proven.</p>}
      </div>

      {w && <Steps steps={stepsOf(w, t, events, now)} />}
      {w && <Actions workflow={w} store={store} now={now} />}
      {w && (w.actions?.length ?? 0) > 0 && <Log workflow={w} />}
      <Events events={events} now={now} />
      <Past machine={m.name} store={store} now={now} />
      {w && <Links workflow={w} store={store} machine={m} mac={mac} now={now} />}
    </section>
  );
}

function RunButtons({ machine: m, workflow: w }: { machine: MachineView; workflow: Workflow }) {
  const requests = useRequests();
  const off = requests.busy !== "";
  const own = w.type === undefined || w.type !== "BMCJob";
  const power = !isOver(w) && w.phase === "power" && manual(m);
  // A run of machines that are installed together is retried with its operation, which the record names.
  const retry = isOver(w) && w.state !== "SUCCESS" && !w.supersededBy && !w.next?.startsWith("ingot together retry ");
  const done = w.type !== "Decommission" && (w.actions ?? []).some((a) => a.state === "SUCCESS");
  const cancel = !isOver(w) && own && w.phase !== "disarm" && !offersAbort(w.question);
  if (!power && !retry && !cancel) return null;
  return (
    <>
      <div class="buttons">
        {power && <Ask choice="powered-on" kind="primary" label="It is switched on" disabled={off} onDo={() => requests.run("on", () => api.poweredOn(w.run))} />}
        {retry && done && <Ask choice="retry-failed-step" kind="primary" label="Retry from the failed step" sure="Retry" note={`Boots ${m.name} from the network again.`} disabled={off} onDo={() => requests.run("retry", () => api.retry(w.run, "failed-step"))} />}
        {retry && <Ask choice="retry-start" kind={done ? undefined : "primary"} label="Retry from the start" sure={w.type === "Decommission" ? "Wipe it" : "Overwrite it"} note={w.type === "Decommission" ? `Wipes all disks of ${m.name} again.` : `Installs ${m.name} again: its disk is overwritten.`} disabled={off} onDo={() => requests.run("retry", () => api.retry(w.run, "start"))} />}
        {cancel && <Ask choice="cancel" label="Cancel" sure="Cancel the run" note="Stop the agent and close netboot?" disabled={off} onDo={() => requests.run("cancel", () => api.cancel(w.run))} />}
      </div>
      <RefusedNote requests={requests} />
    </>
  );
}

/** What may be done to a machine that no run has: install again, or end its service. */
function Service({ machine: m, workflow: w }: { machine: MachineView; workflow?: Workflow }) {
  const requests = useRequests();
  const off = requests.busy !== "";
  if (!w || !isOver(w)) return null;
  const quarantined = m.standing?.state === "quarantined";
  return (
    <details class="service" open={quarantined}>
      <summary>Install again, or end its service</summary>
      <div class="buttons">
        {quarantined && <Ask choice="release" kind="primary" label="Release it" sure="It is in order" note={`You have seen to it yourself: runs may write to ${m.name} again.`} disabled={off} onDo={() => requests.run("release", () => api.release(m.name))} />}
        {m.standing?.state !== "available" && <Ask choice="decommission" label="Decommission" sure="Wipe all disks" note={`Wipes every disk of ${m.name} that is not protected, purges its secrets, releases its addresses and switches it off.`} disabled={off} onDo={() => requests.run("decommission", () => api.decommission(m.name))} />}
      </div>
      <RefusedNote requests={requests} />
      {!quarantined && <Install key={w.run} machine={m} />}
    </details>
  );
}
