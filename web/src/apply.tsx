import { useEffect, useRef, useState } from "preact/hooks";
import { api } from "./api";
import type { Problem } from "./api";
import { Field } from "./form";
import type { Form } from "./form";
import { RefusedNote, useRequests } from "./request";
import { pathTo } from "./route";
import { Editor } from "./editor";
import type { Application, Applied } from "./types";

/** A longer text is not shown for editing, characters: the browser would need seconds for each key. */
const editable = 256 << 10;

/** So many objects and fields of an object are listed. */
const listed = 100;
const listedFields = 10;

/** Returns how many objects have each result: "20 added, 1 changed". */
export function sumOf(items: readonly Applied[]): string {
  const counts = new Map<string, number>();
  for (const i of items) counts.set(i.result, (counts.get(i.result) ?? 0) + 1);
  return [...counts].map(([result, n]) => `${n} ${result}`).join(", ") || "Nothing to store";
}

const conflicting = (i: Applied) => i.foreign !== undefined || (i.changes ?? []).some((c) => c.conflict);

/** Stores the machines and templates of a file, those that were shown before. */
export function ApplyFile() {
  const requests = useRequests();
  const [file, setFile] = useState({ name: "documents.yaml", text: "" });
  const [texts, setTexts] = useState<Record<string, string>>({});
  const [answer, setAnswer] = useState<Application>();
  const found = useRef<HTMLElement>(null);
  useEffect(() => found.current?.scrollIntoView({ block: "nearest" }), [answer]);
  // What is edited is checked again before it is stored.
  const take = (name: string, text: string) => {
    setFile({ name, text });
    setAnswer(undefined);
  };
  const form: Form = {
    texts,
    problems: new Map(),
    change: (f, text) => {
      setAnswer(undefined);
      setTexts((t) => ({ ...t, [f]: text }));
    },
  };
  const send = (dryRun: boolean) =>
    requests.run(dryRun ? "show" : "store", async () => {
      setAnswer(undefined);
      setAnswer(await api.apply({ files: [file], set: texts.set?.trim() ?? "", forceConflicts: !!texts.force, dryRun }));
    });
  const problems: readonly Problem[] = answer ? [] : (requests.refused?.problems ?? []);
  const long = file.text.length > editable;
  const conflict = answer?.items.some(conflicting) && !texts.force;
  const news = answer?.items.some((i) => i.result !== "unchanged" || conflicting(i));
  return (
    <section class="panel" aria-labelledby="panel-name" data-add="file">
      <div class="panel-head">
        <h2 id="panel-name">Add from a file</h2>
      </div>
      <p class="quiet">Machines and templates in YAML, JSON or CSV, as “ingot apply” reads them. Nothing is started. What the file changes is shown before it is stored.</p>
      <form
        class="form"
        onSubmit={(e) => {
          e.preventDefault();
          send(true);
        }}
      >
        <div class="field" data-field="file">
          <label for="field-file">File</label>
          <input
            id="field-file"
            type="file"
            accept=".yaml,.yml,.json,.csv"
            onChange={(e) => {
              const f = e.currentTarget.files?.[0];
              if (f) void f.text().then((text) => take(f.name, text));
            }}
          />
          <p class="quiet">or write or paste it below</p>
        </div>
        <Field form={form} name="set" label="Set" note="a name that these documents belong to, such as rack-a1; may be empty" />
        {long ? (
          <p class="quiet">{file.name} is too long to be shown here.</p>
        ) : (
          <Editor id="documents" text={file.text} label="Documents" problems={problems} onText={(text) => take(file.name, text)} />
        )}
        {(conflict || texts.force) && <Field form={form} name="force" label="Overwrite what others have set" kind="check" />}
        <div class="buttons">
          <button class={answer ? undefined : "primary"} data-choice="preview" disabled={file.text.trim() === "" || requests.busy !== ""}>
            Show what changes
          </button>
          <span role="status">{requests.busy === "show" ? "Checking…" : requests.busy === "store" ? "Storing…" : answer && (answer.stored ? "Stored." : "Nothing is stored yet.")}</span>
        </div>
        {(long || problems.length === 0) && <RefusedNote requests={requests} />}
      </form>
      {answer && (
        <section class="form" ref={found} aria-label={answer.stored ? "What was stored" : "What would be stored"} data-preview={answer.items.length} data-stored={answer.stored || undefined}>
          <h3>
            {answer.stored && "Stored: "}
            {sumOf(answer.items)}
          </h3>
          {answer.warnings?.map((w) => (
            <p key={w} class="text">
              {w}
            </p>
          ))}
          {conflict && <p class="failure">Others have set some of these values since they were applied last. Correct the file, or tick “Overwrite what others have set”.</p>}
          <div class="buttons">
            {answer.stored ? (
              <a href={pathTo("new", "installation")}>Install many</a>
            ) : (
              <button type="button" class="primary" data-choice="apply" disabled={!news || !!conflict || requests.busy !== ""} onClick={() => send(false)}>
                Store it
              </button>
            )}
          </div>
          <ul class="applied">
            {answer.items.slice(0, listed).map((i) => (
              <Row key={`${i.kind} ${i.name}`} item={i} />
            ))}
          </ul>
          {answer.items.length > listed && <p class="quiet">and {answer.items.length - listed} more</p>}
        </section>
      )}
    </section>
  );
}

/** What happens with one machine or template. */
function Row({ item: i }: { item: Applied }) {
  const changes = i.result === "changed" || conflicting(i) ? (i.changes ?? []) : [];
  return (
    <li data-applied={i.name} data-result={i.result}>
      {i.kind === "template" && <span class="quiet">template </span>}
      {i.result === "added" || i.result === "unchanged" ? i.name : <b>{i.name}</b>} <span class="quiet">{i.result}</span>
      {i.foreign !== undefined && <span class="failure"> belongs to {i.foreign ? `the set ${i.foreign}` : "no set"}</span>}
      {changes.length > 0 && (
        <ul>
          {changes.slice(0, listedFields).map((c) => (
            <li key={c.field} class={c.conflict ? "text failure" : "text"}>
              <code>{c.field}</code>
              {i.kind === "machine" && `: ${c.old || "–"} → ${c.new || "–"}`}
            </li>
          ))}
          {changes.length > listedFields && <li class="quiet">and {changes.length - listedFields} more</li>}
        </ul>
      )}
    </li>
  );
}
