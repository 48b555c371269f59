import { useState } from "preact/hooks";
import { api, Refused } from "./api";
import { Ask, RefusedNote, useRequests } from "./request";
import { linkTo } from "./machines";
import type { MachineView } from "./types";

/** How many requests are under way at once. */
const atOnce = 4;

/** Reports many machines as switched on, where power is by hand. */
export function PowerOn({ machines }: { machines: MachineView[] }) {
  const requests = useRequests();
  const [left, setLeft] = useState<ReadonlySet<string>>(new Set());
  if (machines.length < 2) return null;
  const picked = machines.filter((m) => !left.has(m.name));
  const report = async () => {
    const queue = [...picked];
    const failed: string[] = [];
    const next = async () => {
      for (let m = queue.shift(); m; m = queue.shift()) {
        try {
          await api.poweredOn(m.workflow!.run);
        } catch (e) {
          failed.push(`${m.name}: ${e instanceof Error ? e.message : String(e)}`);
        }
      }
    };
    await Promise.all(Array.from({ length: atOnce }, next));
    if (failed.length > 0) throw new Refused(0, failed.join("\n"));
  };
  return (
    <details class="power-on" data-bulk="powered-on">
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
                  checked={!left.has(m.name)}
                  onChange={(e) => {
                    const now = new Set(left);
                    if (e.currentTarget.checked) now.delete(m.name);
                    else now.add(m.name);
                    setLeft(now);
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
        <button type="button" onClick={() => setLeft(left.size === 0 ? new Set(machines.map((m) => m.name)) : new Set())}>
          {left.size === 0 ? "None of them" : "All of them"}
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
