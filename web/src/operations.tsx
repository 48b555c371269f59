import { api } from "./api";
import { TemporalLink } from "./temporal";
import type { Operation, OperationStep } from "./types";
import { Command } from "./command";
import { Decision, offersAbort } from "./decision";
import { Ask, RefusedNote, useRequests } from "./request";
import { useLoaded } from "./history";
import { linkTo, Sign } from "./machines";
import { doing, manual, isOver } from "./phases";
import { go, pathTo } from "./route";
import type { Store } from "./store";
import { acting, ended, late, progress, saying, standing, stateOf, stepsDone, stepTone, took } from "./steps";
import { ago, at, clock, span } from "./text";
import { Side } from "./side";

export function OperationRow({ operation: o, store, now, chosen }: { operation: Operation; store: Store; now: number; chosen: boolean }) {
  const t = standing(o, store.machines);
  const detail = o.question?.text || (ended(o) && o.state === "SUCCESS" ? "" : o.message);
  return (
    <li data-operation={o.id} data-state={o.state} data-step={o.step ?? ""} data-tone={t}>
      <a class={`row ${t}`} href={pathTo("operations", o.run)} aria-current={chosen ? "true" : undefined}>
        <span class="row-top">
          <Sign tone={t} />
          <span class="name">
            {o.type} {o.name}
          </span>
          <span class="quiet netboot">{progress(o)}</span>
        </span>
        {!ended(o) && (o.steps?.length ?? 0) > 0 && <progress value={stepsDone(o)} max={o.steps!.length} aria-label={progress(o)} />}
        <span class="now">{ended(o) ? `${outcome(o)} ${at(o.ended) ? ago(at(o.ended), now) : ""}` : t === "waiting" ? "Waits for you" : `Step ${o.step ?? ""}`}</span>
        {detail && <span class={`detail ${t}`}>{detail}</span>}
      </a>
    </li>
  );
}

/** All operations that the server remembers, and the chosen one. */
export function Operations({ store, run, now }: { store: Store; run: string; now: number }) {
  const live = store.link === "live";
  const { got, failed } = useLoaded(live ? api.operations : undefined, () => true, [live]);
  // The stream has the newest state of those that it sends.
  const all = [...new Map([...(got ?? []), ...store.operations.values()].map((o) => [o.run, o])).values()].sort((a, b) => at(b.started) - at(a.started));
  const chosen = all.find((o) => o.run === run);
  return (
    <main class="columns">
      <section class="list" aria-label="Operations">
        {failed && <p class="failure">{failed}</p>}
        {all.length === 0 && <p class="quiet">No operations yet: neither a Genesis nor a migration, nor an installation of several machines.</p>}
        <ul class="operations">
          {all.map((o) => (
            <OperationRow key={o.run} operation={o} store={store} now={now} chosen={o.run === run} />
          ))}
        </ul>
      </section>
      <Side store={store} back={pathTo("operations")} all="All operations">
        {chosen ? <OperationPanel key={run} operation={chosen} store={store} now={now} /> : <p class="quiet">{run && got ? `There is no operation with the run “${run}” here any more.` : !run && "Choose an operation on the left."}</p>}
      </Side>
    </main>
  );
}

function outcome(o: Operation): string {
  return o.state === "SUCCESS" ? "Done" : o.state === "CANCELLED" ? "Cancelled" : "Failed";
}

export function OperationPanel({ operation: o, store, now }: { operation: Operation; store: Store; now: number }) {
  const t = standing(o, store.machines);
  const requests = useRequests();
  return (
    <section class="panel" aria-labelledby="panel-name" data-operation-panel={o.id} data-state={o.state}>
      <div class="panel-head">
        <h2 id="panel-name">
          {o.type} {o.name}
        </h2>
        <span class="quiet netboot">{progress(o)}</span>
      </div>
      <div class={`state ${t}`}>
        <p class="doing">
          <Sign tone={t} /> {ended(o) ? outcome(o) : t === "waiting" ? "Waits for you" : `Step ${o.step ?? ""}`}
        </p>
        {o.message && !o.question && <p class={t === "failed" ? "text failure" : "text"} data-message>{o.message}</p>}
        {o.question && !ended(o) && <Decision key={o.question.id} question={o.question} now={now} next={o.next} send={(choice) => api.decideOperation(o.run, o.question!.id, choice)} />}
        {!o.question && !ended(o) && (o.steps ?? []).map((s) => <Awaited key={s.name} step={s} store={store} now={now} />)}
        {o.next && !(o.question && !ended(o)) && (
          <div class="next">
            <span class="quiet">Next</span> <Command text={o.next} />
          </div>
        )}
        {!ended(o) && !offersAbort(o.question) && (
          <div class="buttons">
            {o.type === "Recover" && <Pause operation={o} />}
            <Ask choice="cancel" label="Cancel" sure="End it" note="Steps that are done stay done." disabled={requests.busy !== ""} onDo={() => requests.run("cancel", () => api.cancelOperation(o.run))} />
          </div>
        )}
        {ended(o) && o.state !== "SUCCESS" && o.type === "ProvisionTogether" && (
          <div class="buttons">
            <Ask choice="retry" kind="primary" label="Retry" sure="Retry" note="Boots the machines that are not installed." disabled={requests.busy !== ""} onDo={() => requests.run("retry", async () => go(pathTo("operations", await api.retryOperation(o.run))))} />
          </div>
        )}
        <RefusedNote requests={requests} />
      </div>

      {(o.steps?.length ?? 0) > 0 && (
        <section aria-label="Steps">
          <table class="table">
            <thead>
              <tr>
                <th scope="col">#</th>
                <th scope="col">Step</th>
                <th scope="col">Machine</th>
                <th scope="col">What it does, what it waits for</th>
                <th scope="col">State</th>
                <th scope="col">Since</th>
              </tr>
            </thead>
            <tbody>
              {o.steps!.map((s, i) => (
                <StepRow key={s.name} number={i + 1} step={s} operation={o} store={store} now={now} />
              ))}
            </tbody>
          </table>
        </section>
      )}

      <footer class="links">
        <p>
          <TemporalLink store={store} id={o.id} run={o.run}>
            This operation in the Temporal UI
          </TemporalLink>
        </p>
        <p class="quiet">
          {o.type} <code>{o.id}</code> run <code>{o.run}</code>
          {at(o.started) > 0 && <> · started {clock(at(o.started), now)}</>}
          {at(o.ended) > 0 && <> · took {span((at(o.ended) - at(o.started)) / 1000)}</>}
        </p>
        <Command text={`ingot operation get ${o.id}`} />
      </footer>
    </section>
  );
}

/** Lets no further machine start, or lets them start again. */
function Pause({ operation: o }: { operation: Operation }) {
  const requests = useRequests();
  // The record of a paused operation names the command that ends the pause.
  const paused = o.next?.startsWith("ingot operation resume ") ?? false;
  return (
    <>
      <button type="button" data-choice={paused ? "resume" : "pause"} disabled={requests.busy !== ""} onClick={() => requests.run("pause", () => api.pauseOperation(o.run, !paused))}>
        {paused ? "Resume" : "Pause"}
      </button>
      <RefusedNote requests={requests} />
    </>
  );
}

function StepRow({ number, step: s, operation: o, store, now }: { number: number; step: OperationStep; operation: Operation; store: Store; now: number }) {
  const t = stepTone(s, o, store.machines);
  const m = acting(s, store.machines);
  const time = took(s, now);
  return (
    <tr class={`${t} ${s.state}`} data-operation-step={s.name} data-step-state={s.state} data-tone={t} aria-current={s.state === "running" ? "step" : undefined}>
      <td class="quiet">{number}</td>
      <th scope="row">{s.machine === s.name ? <a href={linkTo(s.name)}>{s.name}</a> : s.name}</th>
      <td class="of-machine">{s.machine && s.machine !== s.name && <a href={linkTo(s.machine)}>{s.machine}</a>}</td>
      <td class="of-step">
        <span class={s.state === "failed" ? "text failure" : "text"}>{saying(s)}</span>
        {m && (s.state === "running" || s.state === "waiting") && (
          <span class={`detail ${t}`}>
            {s.machine}: {doing(m, now)}
          </span>
        )}
        {(s.state === "failed" || s.state === "running") && <span class="quiet undo">Undo: {s.undo}</span>}
      </td>
      <td class="step-state">
        <Sign tone={t} /> {t === "waiting" ? "waits for the operator" : stateOf(s)}
      </td>
      <td class="quiet when">
        {at(s.since) > 0 && (
          <time dateTime={s.since} title={clock(at(s.since), now)}>
            {s.state === "running" || s.state === "waiting" ? ago(at(s.asked) || at(s.since), now) : time !== undefined ? `took ${span(time)}` : clock(at(s.since), now)}
          </time>
        )}
        {late(s, now) && <span class="failure"> over {span((s.budget ?? 0) / 1e9)}</span>}
        {!at(s.since) && (s.budget ?? 0) > 0 && <span>up to {span((s.budget ?? 0) / 1e9)}</span>}
      </td>
    </tr>
  );
}

/** The question of a step's machine, answered without leaving the operation. */
function Awaited({ step: s, store, now }: { step: OperationStep; store: Store; now: number }) {
  const requests = useRequests();
  const m = acting(s, store.machines);
  const w = m?.workflow;
  if (!m || !w || isOver(w)) return null;
  if (w.question)
    return (
      <div data-awaited={m.name}>
        <p>
          <b>{m.name}</b> asks:
        </p>
        <Decision key={w.question.id} question={w.question} now={now} send={(choice, d) => api.decide(w.run, w.question!.id, choice, d)} />
      </div>
    );
  if (w.phase !== "power" || !manual(m)) return null;
  return (
    <div data-awaited={m.name}>
      <p>
        <b>{m.name}</b> has to be switched on, and to boot from the network.
      </p>
      <div class="buttons">
        <Ask choice="powered-on" kind="primary" label="It is switched on" disabled={requests.busy !== ""} onDo={() => requests.run("on", () => api.poweredOn(w.run))} />
      </div>
      <RefusedNote requests={requests} />
    </div>
  );
}
