import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { api, Refused } from "./api";
import type { Workflow } from "./types";
import { current, isOver, isRunning } from "./phases";

/** The end of an action's log: of the one that runs, or of the one picked; of its newest attempt, or of the one picked. */
export function Log({ workflow: w }: { workflow: Workflow }) {
  const [picked, setPicked] = useState(-1);
  const [attempt, setAttempt] = useState(0);
  const [text, setText] = useState("");
  const box = useRef<HTMLPreElement>(null);
  // Follow the end of the log unless the reader scrolled away from it.
  const follow = useRef(true);
  const actions = w.actions ?? [];
  const index = picked >= 0 && picked < actions.length ? picked : current(w);
  const a = actions[index];
  const active = a !== undefined && isRunning(a) && !isOver(w);

  useEffect(() => {
    setText("");
    follow.current = true;
  }, [w.run, index, attempt]);
  useEffect(() => {
    if (index < 0) return;
    let gone = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const load = async () => {
      let failed = false;
      try {
        const t = await api.log(w.run, index, attempt);
        if (!gone) setText(t);
      } catch (e) {
        failed = !(e instanceof Refused && e.status === 404);
        if (!gone && !failed) setText("");
      }
      if (!gone && ((active && attempt === 0) || failed)) timer = setTimeout(() => void load(), 2000);
    };
    void load();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [w.run, index, attempt, a?.state, a?.attempt, active]);
  useLayoutEffect(() => {
    const b = box.current;
    if (b && follow.current) b.scrollTop = b.scrollHeight;
  }, [text]);

  if (index < 0) return null;
  return (
    <section aria-label="Log">
      <div class="log-head">
        <h3>Log</h3>
        <select aria-label="Action whose log is shown" value={String(index)} onChange={(e) => {
            setPicked(Number(e.currentTarget.value));
            setAttempt(0);
          }}
        >
          {actions.map((x, i) => (
            <option key={i} value={String(i)} disabled={x.state === "PENDING"}>
              {i + 1} {x.name}
            </option>
          ))}
        </select>
        {(a?.attempt ?? 0) > 1 && (
          <select aria-label="Attempt whose log is shown" value={String(attempt)} onChange={(e) => setAttempt(Number(e.currentTarget.value))}>
            <option value="0">newest attempt</option>
            {Array.from({ length: a!.attempt! }, (_, i) => (
              <option key={i} value={String(i + 1)}>
                attempt {i + 1}
              </option>
            ))}
          </select>
        )}
      </div>
      {text ? (
        <pre
          ref={box}
          class="log"
          data-log={a?.name}
          tabIndex={0}
          onScroll={(e) => {
            const b = e.currentTarget;
            follow.current = b.scrollHeight - b.scrollTop - b.clientHeight < 24;
          }}
        >
          {text}
        </pre>
      ) : (
        <p class="quiet">{active ? "Nothing logged yet." : "No log."}</p>
      )}
    </section>
  );
}
