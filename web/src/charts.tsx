import { api } from "./api";
import { useLoaded } from "./history";
import { isOver, steps } from "./phases";
import type { Store } from "./store";
import { at, span } from "./text";
import type { PhaseTime, Workflow } from "./types";

export interface Bar {
  label: string;
  /** Parts of the bar, from the bottom, in the order of the legend. */
  parts: number[];
}

const day = 86_400_000;

/** The start of the day of t in local time, ms. Days of 23 and 25 hours are days. */
function dayOf(t: number): number {
  return new Date(t).setHours(0, 0, 0, 0);
}

const installs = (w: Workflow) => isOver(w) && !w.noSystem && (w.type === undefined || w.type === "Provision" || w.type === "Reprovision");

/** Counts the installations that ended on each of the last days until now (ms): successes, failures. */
export function perDay(runs: readonly Workflow[], now: number, days: number): Bar[] {
  const bars = new Map<number, Bar>();
  for (let i = days - 1; i >= 0; i--) {
    const d = dayOf(dayOf(now) - i * day + day / 2);
    bars.set(d, { label: new Date(d).toLocaleDateString([], { day: "numeric", month: "short" }), parts: [0, 0] });
  }
  for (const w of runs) {
    const bar = installs(w) && w.state !== "CANCELLED" ? bars.get(dayOf(at(w.ended))) : undefined;
    if (bar) bar.parts[w.state === "SUCCESS" ? 0 : 1]!++;
  }
  return [...bars.values()];
}

/** Returns the median duration in seconds of each action that has succeeded, the longest first. */
export function perAction(runs: readonly Workflow[]): Bar[] {
  const took = new Map<string, number[]>();
  for (const a of runs.filter(installs).flatMap((w) => w.actions ?? [])) if (a.state === "SUCCESS" && a.seconds !== undefined) took.set(a.name, [...(took.get(a.name) ?? []), a.seconds]);
  const median = (all: number[]) => all.sort((a, b) => a - b)[(all.length - 1) >> 1]!;
  return [...took].map(([label, all]) => ({ label, parts: [median(all)] })).sort((a, b) => b.parts[0]! - a.parts[0]!).slice(0, 12);
}

/** Returns the median duration in seconds of each phase, in the order of an installation. */
export function perPhase(times: readonly PhaseTime[]): Bar[] {
  const order = Object.keys(steps);
  const rank = (t: PhaseTime) => order.indexOf(t.phase) + 1 || order.length + 1;
  return [...times].sort((a, b) => rank(a) - rank(b)).map((t) => ({ label: steps[t.phase]?.[0] ?? t.phase, parts: [t.seconds] }));
}

const sum = (b: Bar) => b.parts.reduce((a, x) => a + x, 0);

/** A chart of days, and the same numbers as a table. */
export function Chart({ id, title, legend, bars }: { id: string; title: string; legend: string[]; bars: Bar[] }) {
  const [width, height, gap] = [600, 140, 4];
  const most = Math.max(1, ...bars.map(sum));
  const step = width / Math.max(1, bars.length);
  return (
    <figure class="chart" data-chart={id}>
      <figcaption>
        <h2 id={`chart-${id}`}>{title}</h2>
        <p class="quiet">
          {legend.map((l, i) => (
            <span key={l}>
              <i class={`key part-${i}`} aria-hidden="true" /> {l}{" "}
            </span>
          ))}
          · at most {most}
        </p>
      </figcaption>
      <svg viewBox={`0 0 ${width} ${height}`} role="img" aria-labelledby={`chart-${id}`} preserveAspectRatio="none">
        <title>{title}</title>
        {bars.flatMap((b, i) => {
          let top = height;
          return b.parts.map((n, part) => {
            const h = (n / most) * height;
            top -= h;
            return n > 0 && <rect key={`${i}.${part}`} class={`part-${part}`} x={i * step + gap / 2} y={top} width={step - gap} height={h} />;
          });
        })}
      </svg>
      <p class="ends quiet" aria-hidden="true">
        <span>{bars[0]?.label}</span> <span>{bars.at(-1)?.label}</span>
      </p>
      <details>
        <summary>As a table</summary>
        <table class="table">
          <thead>
            <tr>
              <th scope="col">Day</th>
              {legend.map((l) => (
                <th key={l} scope="col">
                  {l}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {bars.map((b, i) => (
              <tr key={i}>
                <th scope="row">{b.label}</th>
                {b.parts.map((n, part) => (
                  <td key={part}>{n}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </figure>
  );
}

/** A bar for each duration, with its name and the number. */
export function Durations({ id, title, of, bars }: { id: string; title: string; of: string; bars: Bar[] }) {
  const most = Math.max(1, ...bars.map(sum));
  return (
    <figure class="chart" data-chart={id}>
      <figcaption>
        <h2 id={`chart-${id}`}>{title}</h2>
      </figcaption>
      {bars.length === 0 ? (
        <p class="quiet">None yet.</p>
      ) : (
        <table class="durations" aria-labelledby={`chart-${id}`}>
          <thead class="sr">
            <tr>
              <th scope="col">{of}</th>
              <th scope="col" colSpan={2}>
                Median
              </th>
            </tr>
          </thead>
          <tbody>
            {bars.map((b) => (
              <tr key={b.label} data-bar={b.label}>
                <th scope="row">{b.label}</th>
                <td>{sum(b) < 10 ? `${sum(b).toFixed(1)} s` : span(sum(b))}</td>
                <td aria-hidden="true">
                  <svg viewBox="0 0 100 1" preserveAspectRatio="none">
                    <rect class="part-0" width={(sum(b) / most) * 100} height={1} />
                  </svg>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </figure>
  );
}

/** How many runs are counted. */
const newest = 1000;

/** Installations per day, and how long their actions take. */
export function Statistics({ store, now }: { store: Store; now: number }) {
  const live = store.link === "live";
  const { got, failed } = useLoaded(live ? () => Promise.all([api.newestRuns(newest), api.phaseTimes(newest)]) : undefined, () => false, [live]);
  const [runs, phases] = got ?? [[], []];
  return (
    <main class="charts">
      {failed && <p class="failure">{failed}</p>}
      {got && (
        <>
          <Chart id="days" title="Installations per day" legend={["installed", "failed"]} bars={perDay(runs, now, 30)} />
          <Durations id="phases" title="Median duration of phases" of="Phase" bars={perPhase(phases)} />
          <Durations id="actions" title="Median duration of actions" of="Action" bars={perAction(runs)} />
          {runs.length === newest && <p class="quiet">Of the newest {newest} runs.</p>}
        </>
      )}
    </main>
  );
}
