import type { MachineView } from "./api";
import { Bar } from "./bar";
import { doing, over, running, tells, tone } from "./phases";
import type { Tone } from "./phases";
import type { Store } from "./store";
import { ago, at, clock, span } from "./text";

const signs: Record<Tone, string> = { idle: "○", working: "▶", waiting: "?", failed: "✕", done: "✓" };

export function Sign({ tone }: { tone: Tone }) {
  return (
    <span class={`sign ${tone}`} aria-hidden="true">
      {signs[tone]}
    </span>
  );
}

/** Says whether the machine may boot from the network now. */
export function Window({ machine, now }: { machine: MachineView; now: number }) {
  const n = machine.netboot;
  const until = at(n?.until);
  const open = n?.allowPXE ?? false;
  return (
    <span class={`netboot ${open ? "open" : ""}`} data-netboot={open ? "open" : "closed"} title={open && until ? `until ${clock(until, now)}` : "a network boot is sent to its disk"}>
      netboot {open ? `open${until > now ? ` · ${span((until - now) / 1000)} left` : ""}` : "closed"}
    </span>
  );
}

export function MachineRow({ machine: m, store, now, chosen }: { machine: MachineView; store: Store; now: number; chosen: boolean }) {
  const w = m.workflow;
  const t = tone(m);
  const a = w && running(w);
  const e = store.lastEvent(m);
  const detail = w && (t === "waiting" ? w.question?.text || w.message : t === "failed" || t === "working" ? w.message : "");
  const address = m.interfaces?.find((i) => i.address)?.address;
  return (
    <li data-machine={m.name} data-phase={w?.phase ?? ""} data-state={w?.state ?? ""} data-tone={t}>
      <a class={`row ${t}`} href={`#/machines/${encodeURIComponent(m.name)}`} aria-current={chosen ? "true" : undefined}>
        <span class="row-top">
          <Sign tone={t} />
          <span class="name">{m.name}</span>
          <span class="quiet address">{address}</span>
          <Window machine={m} now={now} />
        </span>
        <span class="now">
          {w && !over(w) && w.phase && <span class="phase">{w.phase === "waiting-for-person" ? "waiting" : w.phase}</span>} {doing(m, now)}
        </span>
        {detail && <span class={`detail ${t}`}>{detail}</span>}
        {w && a && <Bar workflow={w} index={a.index} store={store} />}
        <span class="quiet last">{e ? `${tells(e)} · ${ago(at(e.at), now)}` : at(m.lastSeen) ? `last seen ${ago(at(m.lastSeen), now)}` : ""}</span>
      </a>
    </li>
  );
}
