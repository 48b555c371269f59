import { useEffect, useState } from "preact/hooks";
import { api, Refused } from "./api";
import { Ask, RefusedNote, useRequests } from "./request";
import { linkTo } from "./machines";
import type { MachineView } from "./types";

/** How many requests are under way at once. */
const atOnce = 4;

const runOf = (m: MachineView) => m.workflow!.run;

/** Reports many machines as switched on, where power is by hand. */
export function PowerOn({ machines }: { machines: MachineView[] }) {
  const requests = useRequests();
  // The runs of the ticked machines: those in the list when it was opened. A run that is
  // added later starts unticked.
  const [ticked, setTicked] = useState<ReadonlySet<string>>(new Set());
  const runs = machines.map(runOf);
  useEffect(() => {
    // A run that leaves the list and returns waits for the button again.
    setTicked((was) => ([...was].every((r) => runs.includes(r)) ? was : new Set(runs.filter((r) => was.has(r)))));
  }, [runs.join()]);
  if (machines.length < 2) return null;
  const picked = machines.filter((m) => ticked.has(runOf(m)));
  const all = picked.length === machines.length;
  const report = async () => {
    const queue = [...picked];
    const failed: string[] = [];
    const next = async () => {
      for (let m = queue.shift(); m; m = queue.shift()) {
        try {
          await api.poweredOn(runOf(m));
        } catch (e) {
          failed.push(`${m.name}: ${e instanceof Error ? e.message : String(e)}`);
        }
      }
    };
    await Promise.all(Array.from({ length: atOnce }, next));
    if (failed.length > 0) throw new Refused(0, failed.join("\n"));
  };
  return (
    <details class="power-on" data-bulk="powered-on" onToggle={(e) => e.currentTarget.open && setTicked(new Set(runs))}>
      <summary>
        <b>{machines.length} machines</b> have to be switched on by hand
      </summary>
      <fieldset>
        <legend>Which of them are on?</legend>
        <ul>
          {machines.map((m) => (
            <li key={m.name}>
              <label>
                <input
                  type="checkbox"
                  checked={ticked.has(runOf(m))}
                  onChange={(e) => {
                    const now = new Set(ticked);
                    if (e.currentTarget.checked) now.add(runOf(m));
                    else now.delete(runOf(m));
                    setTicked(now);
                  }}
                />{" "}
                {m.name}
              </label>{" "}
              <a href={linkTo(m.name)}>show</a>
            </li>
          ))}
        </ul>
      </fieldset>
      <div class="buttons">
        <button type="button" onClick={() => setTicked(new Set(all ? [] : runs))}>
          {all ? "None of them" : "All of them"}
        </button>
        <Ask
          choice="powered-on-many"
          kind="primary"
          label={`${picked.length} are switched on`}
          sure={`Yes, all ${picked.length}`}
          note="Their runs go on."
          disabled={picked.length === 0 || requests.busy !== ""}
          onDo={() => requests.run("on", report)}
        />
      </div>
      <RefusedNote requests={requests} />
    </details>
  );
}
