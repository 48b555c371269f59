import type { Workflow } from "./types";
import { isRunning } from "./phases";
import { attempt } from "./store";
import type { Store } from "./store";
import { bytes, span } from "./text";

/** The progress of an action: bytes, rate and time to go. */
export function Bar({ workflow, index, store }: { workflow: Workflow; index: number; store: Store }) {
  const a = workflow.actions?.[index];
  if (!a) return null;
  const done = a.done ?? 0;
  const total = a.total ?? 0;
  const active = isRunning(a);
  if (!done && !total) return null;
  const pace = store.meter.pace(attempt(workflow, index), total, Date.now());
  const percent = total > 0 ? Math.min(100, Math.floor((done / total) * 100)) : undefined;
  const words = [total > 0 ? `${bytes(done)} of ${bytes(total)}` : bytes(done)];
  if (active) {
    if (total > 0 && done >= total) words.push("finishing");
    else if (pace.still > 10) words.push(`no progress for ${span(pace.still)}`);
    else if (pace.rate > 0) {
      words.push(`${bytes(pace.rate)}/s`);
      if (pace.left !== undefined) words.push(`${span(pace.left)} left`);
    }
  }
  return (
    <div class={`bar ${active && pace.still > 10 && done < total ? "still" : ""}`}>
      <progress
        {...(percent === undefined ? {} : { value: done, max: total })}
        aria-label={`${a.name}: ${words.join(", ")}`}
        data-progress={percent ?? "unknown"}
        data-done={done}
        data-total={total}
      />
      <span class="bar-words">
        {percent !== undefined && <b>{percent} %</b>} {words.join(" · ")}
      </span>
    </div>
  );
}
