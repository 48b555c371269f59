import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { remember, topsOf, visible } from "./list";
import { doing, imageOf, isOver, running, tone } from "./phases";
import type { Tone } from "./phases";
import { at, clock, roughly, span } from "./text";
import type { MachineView } from "./types";

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
  const [tallHeight, setTallHeight] = useState(54);
  useEffect(() => {
    const b = box.current!;
    const measured = new ResizeObserver(() => setHeight(b.clientHeight));
    measured.observe(b);
    return () => measured.disconnect();
  }, []);
  useLayoutEffect(() => {
    const measure = (rows: string, set: (height: number) => void) => {
      const height = box.current?.querySelector<HTMLElement>(rows)?.offsetHeight;
      if (height) set(height);
    };
    measure("[data-machine].tall", setTallHeight);
    measure("[data-machine]:not(.tall)", setRowHeight);
  });
  // Machines that are well come last, and have no reason.
  const well = rows.findIndex((m) => !trouble.has(tone(m)));
  const tops = topsOf(rows, (m, i) => (well < 0 || i < well) && reason(m) !== "", tallHeight, rowHeight);
  const { from, to } = visible(tops, top, height);
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
          {from > 0 && <Space height={tops[from]!} />}
          {rows.slice(from, to).map((m, i) => (
            <MachineRow key={m.name} machine={m} now={now} chosen={m.name === chosen} index={from + i + 2} />
          ))}
          {to < rows.length && <Space height={tops[rows.length]! - tops[to]!} />}
        </tbody>
      </table>
    </div>
  );
}

/** Takes the place of rows that are out of view. */
function Space({ height }: { height: number }) {
  return (
    <tr class="space" aria-hidden="true">
      <td style={{ height: `${height}px` }} />
    </tr>
  );
}

const trouble: ReadonlySet<Tone> = new Set<Tone>(["waiting", "retrying", "failed"]);

/** Why a machine needs the operator: what it asks, what fails, or why it failed; "" if it does not. */
const reason = remember((m) => {
  const w = m.workflow;
  if (!w) return "";
  const t = tone(m);
  if (t === "waiting") return w.question?.text || w.message || "";
  if (t === "retrying") return w.retrying?.[0] ?? "";
  return t === "failed" ? (w.message ?? "") : "";
});

/** One machine. A reason makes its row taller, and takes the place of image and address. */
function MachineRow({ machine: m, now, chosen, index }: { machine: MachineView; now: number; chosen: boolean; index: number }) {
  const w = m.workflow;
  const t = tone(m);
  const a = w && running(w)?.action;
  const percent = a?.total ? ` · ${Math.min(100, Math.floor(((a.done ?? 0) / a.total) * 100))} %` : "";
  const since = w ? at(isOver(w) ? w.ended : w.started) : 0;
  const why = reason(m);
  const more = why || (t === "working" && w?.message) || "";
  const open = m.netboot?.allowPXE ?? false;
  return (
    <tr
      class={why ? `${t} tall` : t}
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
      <td class="of-doing" title={more} colSpan={why ? 3 : undefined}>
        <span class="lines">
          {doing(m, now).replace(/, [^,]* ago$/, "")}
          {percent}
          {more && <span class="more"> · {more}</span>}
        </span>
      </td>
      {!why && (
        <>
          <td class="of-image">{imageOf(m) || w?.template || m.template}</td>
          <td class="of-address">{m.interfaces?.find((i) => i.address)?.address}</td>
        </>
      )}
      <td class="of-since" title={open ? `netboot open${m.netboot?.until ? ` until ${clock(at(m.netboot.until), now)}` : ""}` : undefined}>
        {open && <span class="netboot open">netboot </span>}
        {since > 0 && <span title={clock(since, now)}>{roughly((now - since) / 1000)}</span>}
      </td>
    </tr>
  );
}
