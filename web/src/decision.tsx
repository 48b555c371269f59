import { useState } from "preact/hooks";
import type { Disk, Question, Selector } from "./types";
import { Command } from "./command";
import { Ask, RefusedNote, useRequests } from "./request";
import { ago, at, bytes } from "./text";

/** Returns the selector that picks d and no other of disks, or undefined. */
export function selectorOf(d: Disk, disks: Disk[]): Selector | undefined {
  const alone = (same: (o: Disk) => boolean) => disks.filter(same).length === 1;
  if (d.serial && alone((o) => o.serial === d.serial)) return { serial: d.serial };
  if (d.wwn && alone((o) => o.wwn === d.wwn)) return { wwn: d.wwn };
  for (const id of d.byID ?? []) if (alone((o) => o.byID?.includes(id) ?? false)) return { byID: id };
  if (d.serial && d.model && alone((o) => o.serial === d.serial && o.model === d.model)) return { serial: d.serial, model: d.model };
  return undefined;
}

/** What the server's command has where the disk belongs. */
const placeholder = "--disk-serial SERIAL";

const quoted = (s: string) => (/^[\w.:@%+=/-]+$/.test(s) ? s : `'${s.replaceAll("'", `'\\''`)}'`);

/** Returns the command with the chosen disk, or "" if the command line has no flag for this selector. */
export function commandFor(next: string, s: Selector | undefined): string {
  if (!s || !next.includes(placeholder)) return next;
  if (s.model) return "";
  const flag = s.serial ? `--disk-serial ${quoted(s.serial)}` : s.wwn ? `--disk-wwn ${quoted(s.wwn)}` : `--disk-by-id ${quoted(s.byID ?? "")}`;
  return next.replace(placeholder, () => flag);
}

/** Reports whether a question can be answered by abort, which then is the one way to end what asks. */
export const offersAbort = (q: Question | null | undefined) => q?.choices?.includes("abort") ?? false;

/** Says what is on a disk. */
export function holds(d: Disk): string {
  if (d.written) return "written by Ingot before";
  if (d.blank) return "blank";
  return (d.signatures ?? []).join(", ") || "not blank";
}

/** How each choice looks, and whether it asks again. */
export const choices: Record<string, { label: string; sure?: string; note?: string; kind?: string }> = {
  retry: { label: "Try again", kind: "primary" },
  continue: { label: "Done, go on", kind: "primary" },
  skip: { label: "Skip it", sure: "Skip", note: "Go on as if it had succeeded?" },
  restart: { label: "Start over", sure: "Start over", note: "Begin again with power-on?" },
  undo: { label: "Take it back", sure: "Take it back", note: "Undo what the step did?" },
  abort: { label: "Abort", sure: "Abort", note: "End it as failed?" },
};

/**
 * Shows a question to the operator; send returns the answer to the run or operation that asks, and next is the command that
 * answers it.
 */
export function Decision({ question: q, now, next, send }: { question: Question; now: number; next?: string; send: (choice: string, s?: Selector) => Promise<unknown> }) {
  const requests = useRequests();
  const [picked, setPicked] = useState(-1);
  const [answered, setAnswered] = useState("");
  const disks = q.disks ?? [];
  const disk = disks[picked];
  const selector = disk && selectorOf(disk, disks);
  const decide = (choice: string, s?: Selector) =>
    requests.run(choice, async () => {
      await send(choice, s);
      setAnswered(s ? `write to ${disk?.serial ?? disk?.path ?? "the disk"}` : (choices[choice]?.label ?? choice));
    });
  const offered = q.choices ?? [];
  const command = commandFor(next ?? "", selector);
  return (
    <section class="decision" aria-labelledby={`question-${q.id}`} data-question={q.id}>
      <h3 id={`question-${q.id}`}>Waits for your decision</h3>
      <p class="text">{q.text}</p>
      {disks.length > 0 && (
        <fieldset class="disks">
          <legend>Disks found on the machine</legend>
          {disks.map((d, i) => {
            const s = selectorOf(d, disks);
            return (
              <label key={i} class="disk" data-disk={d.serial ?? d.path}>
                <input type="radio" name={`disk-${q.id}`} checked={picked === i} disabled={!s || d.readOnly} onChange={() => setPicked(i)} />
                <span>
                  <b>{bytes(d.size)}</b> {d.model ?? "unknown model"} <span class="quiet">{[d.transport, d.rotational ? "rotational" : "", d.removable ? "removable" : "", d.readOnly ? "read-only" : "", (d.sectorSize ?? 512) > 512 ? `${d.sectorSize}-byte sectors` : "", d.path].filter(Boolean).join(" · ")}</span>
                  <br />
                  <span class={d.blank ? "quiet" : "holds"}>{holds(d)}</span>
                  <br />
                  {s ? <code>diskSelector: {JSON.stringify(s)}</code> : <span class="quiet">has no property of its own: it cannot be selected</span>}
                </span>
              </label>
            );
          })}
        </fieldset>
      )}
      {answered ? (
        <div class="buttons">
          <p role="status">Answered: {answered}. Waiting for what comes of it…</p>
          <button type="button" onClick={() => setAnswered("")}>
            Answer again
          </button>
        </div>
      ) : (
        <div class="buttons">
          {offered.map((c) => {
            const look = choices[c] ?? { label: c };
            // To continue after the choice of a disk means to write to that disk.
            // If the run can continue with a disk, retry means to list the disks again.
            if (disks.length > 0 && c === "retry" && (!disk || offered.includes("continue")))
              return <Ask key="again" choice={c} label="Look at the disks again" disabled={requests.busy !== ""} onDo={() => decide(c)} />;
            if (disks.length > 0 && (c === "continue" || c === "retry"))
              return (
                <Ask
                  key={`${c}${picked}`}
                  choice={c}
                  kind="primary"
                  label="Write to this disk"
                  disabled={!selector || requests.busy !== ""}
                  sure={disk?.blank ? undefined : "Overwrite it"}
                  note={disk ? `Everything on ${disk.serial ?? disk.path} (${holds(disk)}) will be lost.` : ""}
                  onDo={() => decide(c, selector)}
                />
              );
            return <Ask key={c} choice={c} {...look} disabled={requests.busy !== ""} onDo={() => decide(c)} />;
          })}
        </div>
      )}
      <RefusedNote requests={requests} />
      {command && (
        <div class="next">
          <span class="quiet">Next</span> <Command text={command} />
        </div>
      )}
      {at(q.since) > 0 && <p class="quiet">asked {ago(at(q.since), now)}; its time limit does not run</p>}
    </section>
  );
}
