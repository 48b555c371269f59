import { useEffect, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { api, Refused } from "./api";
import { choices } from "./decision";
import type { Equal } from "./list";
import { linkTo } from "./machines";
import { Ask, RefusedNote, useRequests } from "./request";
import type { MachineView } from "./types";

/** How many requests are under way at once. */
const atOnce = 4;

/** What can be done with the ticked machines. */
interface Act {
  choice: string;
  label: string;
  note: string;
  kind?: string;
  send: (m: MachineView) => Promise<unknown>;
}

interface ManyProps {
  id: string;
  machines: MachineView[];
  /** Names what is asked of a machine: another key is another question, and starts unticked. */
  keyOf: (m: MachineView) => string;
  legend: string;
  /** What is offered for a number of machines. */
  acts: (count: number) => Act[];
  children: ComponentChildren;
}

/** One answer for many machines. Those in the list when it is opened are ticked; closed, it draws none of them. */
export function Many({ id, machines, keyOf, legend, acts, children }: ManyProps) {
  const requests = useRequests();
  const [open, setOpen] = useState(false);
  const [ticked, setTicked] = useState<ReadonlySet<string>>(new Set());
  const keys = machines.map(keyOf);
  useEffect(() => {
    // A key that leaves the list and returns is asked about again.
    setTicked((was) => ([...was].every((k) => keys.includes(k)) ? was : new Set(keys.filter((k) => was.has(k)))));
  }, [keys.join()]);
  if (machines.length < 2) return null;
  const picked = machines.filter((m) => ticked.has(keyOf(m)));
  const all = picked.length === machines.length;
  const send = async (act: Act) => {
    const queue = [...picked];
    const failed: string[] = [];
    const next = async () => {
      for (let m = queue.shift(); m; m = queue.shift()) {
        try {
          await act.send(m);
        } catch (e) {
          failed.push(`${m.name}: ${e instanceof Error ? e.message : String(e)}`);
        }
      }
    };
    await Promise.all(Array.from({ length: atOnce }, next));
    if (failed.length > 0) throw new Refused(0, failed.join("\n"));
  };
  return (
    <details
      class="many"
      data-bulk={id}
      onToggle={(e) => {
        setOpen(e.currentTarget.open);
        if (e.currentTarget.open) setTicked(new Set(keys));
      }}
    >
      <summary>{children}</summary>
      {open && (
        <>
          <fieldset>
            <legend>{legend}</legend>
            <ul>
              {machines.map((m) => (
                <li key={m.name}>
                  <label>
                    <input
                      type="checkbox"
                      checked={ticked.has(keyOf(m))}
                      onChange={(e) => {
                        const now = new Set(ticked);
                        if (e.currentTarget.checked) now.add(keyOf(m));
                        else now.delete(keyOf(m));
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
            <button type="button" onClick={() => setTicked(new Set(all ? [] : keys))}>
              {all ? "None of them" : "All of them"}
            </button>
            {acts(picked.length).map((a) => (
              <Ask
                key={a.choice}
                choice={a.choice}
                kind={a.kind}
                label={a.label}
                sure={`Yes, all ${picked.length}`}
                note={a.note}
                disabled={picked.length === 0 || requests.busy !== ""}
                onDo={() => requests.run(a.choice, () => send(a))}
              />
            ))}
          </div>
          <RefusedNote requests={requests} />
        </>
      )}
    </details>
  );
}

/** Answers several machines that ask the same; each answer names the question of its machine. */
export function SameQuestions({ groups }: { groups: Equal[] }) {
  return (
    <>
      {groups.map(({ text, offered, machines }) => (
        <Many
          key={`${text}\n${offered.join()}`}
          id="decide"
          machines={machines}
          keyOf={(m) => `${m.workflow!.run} ${m.workflow!.question!.id}`}
          legend="Which of them get the same answer?"
          acts={(count) =>
            offered.map((c) => ({
              choice: `${c}-many`,
              kind: choices[c]?.kind,
              label: `${choices[c]?.label ?? c}: ${count}`,
              note: choices[c]?.note ?? "",
              send: (m) => api.decide(m.workflow!.run, m.workflow!.question!.id, c),
            }))
          }
        >
          <b>{machines.length} machines</b> ask the same: <span class="text">{text}</span>
        </Many>
      ))}
    </>
  );
}
