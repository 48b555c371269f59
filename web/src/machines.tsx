import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { visible } from "./list";
import { doing, imageOf, isOver, running, tone } from "./phases";
import type { Tone } from "./phases";
import { ago, at, clock, span } from "./text";
import type { MachineView, Workflow } from "./types";

const signs: Record<Tone, string> = { idle: "○", working: "▶", retrying: "↻", waiting: "?", failed: "✕", done: "✓" };

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

export const linkTo = (machine: string) => `#/machines/${encodeURIComponent(machine)}`;

/** The table of machines. Only the rows in view are in the document: there may be thousands. */
export function MachineTable({ rows, now, chosen }: { rows: MachineView[]; now: number; chosen: string }) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(800);
  const [rowHeight, setRowHeight] = useState(34);
  useEffect(() => {
    const b = box.current!;
    const measured = new ResizeObserver(() => setHeight(b.clientHeight));
    measured.observe(b);
    return () => measured.disconnect();
  }, []);
  useLayoutEffect(() => {
    const first = box.current?.querySelector<HTMLElement>("[data-machine]");
    if (first && first.offsetHeight > 0) setRowHeight(first.offsetHeight);
  });
  const { from, to } = visible(rows.length, rowHeight, top, height);
  return (
    <div class="scroll" ref={box} tabIndex={0} role="region" aria-label="Machines" onScroll={(e) => setTop(e.currentTarget.scrollTop)}>
      <table class="machines" aria-rowcount={rows.length + 1}>
        <thead>
          <tr aria-rowindex={1}>
            <th scope="col" class="of-name">
              Machine
            </th>
            <th scope="col">What it does</th>
            <th scope="col" class="of-image">
              Image
            </th>
            <th scope="col" class="of-address">
              Address
            </th>
            <th scope="col" class="of-since">
              Since
            </th>
          </tr>
        </thead>
        <tbody>
          {from > 0 && <Space height={from * rowHeight} />}
          {rows.slice(from, to).map((m, i) => (
            <MachineRow key={m.name} machine={m} now={now} chosen={m.name === chosen} index={from + i + 2} />
          ))}
          {to < rows.length && <Space height={(rows.length - to) * rowHeight} />}
        </tbody>
      </table>
    </div>
  );
}

/** Takes the place of rows that are out of view. It spans the columns that are always there: more would take room. */
function Space({ height }: { height: number }) {
  return (
    <tr class="space" aria-hidden="true">
      <td colSpan={2} style={{ height: `${height}px` }} />
    </tr>
  );
}

/** What else there is to say of a machine in its row. */
function detail(w: Workflow, t: Tone): string {
  if (t === "waiting") return w.question?.text || w.message || "";
  if (t === "retrying") return w.retrying?.[0] ?? "";
  return t === "failed" || t === "working" ? (w.message ?? "") : "";
}

function MachineRow({ machine: m, now, chosen, index }: { machine: MachineView; now: number; chosen: boolean; index: number }) {
  const w = m.workflow;
  const t = tone(m);
  const a = w && running(w)?.action;
  const percent = a?.total ? ` · ${Math.min(100, Math.floor(((a.done ?? 0) / a.total) * 100))} %` : "";
  const since = w ? at(isOver(w) ? w.ended : w.started) : 0;
  const more = w ? detail(w, t) : "";
  const open = m.netboot?.allowPXE ?? false;
  return (
    <tr
      class={t}
      data-machine={m.name}
      data-phase={w?.phase ?? ""}
      data-state={w?.state ?? ""}
      data-tone={t}
      aria-rowindex={index}
      aria-current={chosen ? "true" : undefined}
      onClick={() => (location.hash = linkTo(m.name))}
    >
      <th scope="row" class="of-name">
        <Sign tone={t} /> <a href={linkTo(m.name)}>{m.name}</a>
      </th>
      <td class="of-doing" title={more}>
        {doing(m, now).replace(/, [^,]* ago$/, "")}
        {percent}
        {more && <span class="more"> · {more}</span>}
      </td>
      <td class="of-image">{imageOf(m) || w?.template || m.template}</td>
      <td class="of-address">{m.interfaces?.find((i) => i.address)?.address}</td>
      <td class="of-since" title={open ? `netboot open${m.netboot?.until ? ` until ${clock(at(m.netboot.until), now)}` : ""}` : undefined}>
        {open && <span class="netboot open">netboot </span>}
        {since > 0 && ago(since, now).replace(/ ago$/, "")}
      </td>
    </tr>
  );
}
