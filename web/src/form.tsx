import { useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import type { Problem } from "./api";
import { RefusedNote, useRequests } from "./request";
import type { Requests } from "./request";

/** Returns the field of names to which a problem belongs: its own, or the one that holds it; "" if there is none. */
export function fieldOf(problem: Problem, names: readonly string[]): string {
  const at = (problem.field ?? "").replace(/^machines(\[0\])?\./, "");
  const holds = (name: string) => [at, `interfaces[0].${at}`].some((x) => x === name || x.startsWith(`${name}.`) || x.startsWith(`${name}[`));
  return names.filter(holds).sort((a, b) => b.length - a.length)[0] ?? "";
}

/** Says a problem and its remedy. */
export const problemText = (p: Problem) => p.what + (p.remedy ? ` (${p.remedy})` : "");

/** What a field needs of its form. */
export interface Form {
  texts: Record<string, string>;
  /** The problems that the server has found, by field. */
  problems: ReadonlyMap<string, Problem[]>;
  change(name: string, text: string): void;
}

/** Sorts the problems of the last request by the fields of a form. */
export function problemsOf(requests: Requests, names: readonly string[]): ReadonlyMap<string, Problem[]> {
  const out = new Map<string, Problem[]>();
  for (const p of requests.refused?.problems ?? []) {
    const field = fieldOf(p, names);
    out.set(field, [...(out.get(field) ?? []), p]);
  }
  return out;
}

interface FieldProps {
  form: Form;
  name: string;
  label: string;
  note?: string;
  /** How it is shown; a line of text by default. */
  kind?: "password" | "area" | "check" | "choice";
  /** What may be chosen: values and their words. */
  options?: readonly (readonly [string, string])[];
  placeholder?: string;
  required?: boolean;
}

/** A labelled input, with the problems that the server has found there. */
export function Field({ form, name, label, note, kind, options, placeholder, required }: FieldProps) {
  const problems = form.problems.get(name) ?? [];
  const id = `field-${name}`;
  const value = form.texts[name] ?? "";
  const common = {
    id,
    name,
    required,
    "aria-invalid": problems.length > 0 ? ("true" as const) : undefined,
    "aria-describedby": [note && `${id}-note`, problems.length > 0 && `${id}-problems`].filter(Boolean).join(" ") || undefined,
  };
  const input = (e: { currentTarget: { value: string } }) => form.change(name, e.currentTarget.value);
  return (
    <div class={`field ${kind ?? ""}`} data-field={name} data-invalid={problems.length > 0 || undefined}>
      <label for={id}>{label}</label>
      {kind === "area" ? (
        <textarea {...common} rows={3} spellcheck={false} value={value} placeholder={placeholder} onInput={input} />
      ) : kind === "check" ? (
        <input {...common} type="checkbox" checked={value !== ""} onChange={(e) => form.change(name, e.currentTarget.checked ? "true" : "")} />
      ) : kind === "password" ? (
        <input {...common} type="password" autocomplete="new-password" value={value} onInput={input} />
      ) : kind === "choice" ? (
        <select {...common} value={value} onChange={input}>
          {options?.map(([v, words]) => (
            <option key={v} value={v}>
              {words}
            </option>
          ))}
        </select>
      ) : (
        <input {...common} type="text" autocomplete="off" spellcheck={false} value={value} placeholder={placeholder} onInput={input} />
      )}
      {note && (
        <p class="quiet" id={`${id}-note`}>
          {note}
        </p>
      )}
      {problems.length > 0 && (
        <ul class="failure" id={`${id}-problems`}>
          {problems.map((p) => (
            <li key={p.what}>{problemText(p)}</li>
          ))}
        </ul>
      )}
    </div>
  );
}

/** Says that a form was refused: what belongs to no field, and how many fields have to be corrected. */
export function FormNote({ requests, problems }: { requests: Requests; problems: ReadonlyMap<string, Problem[]> }) {
  const named = [...problems.keys()].filter(Boolean).length;
  if (named === 0) return <RefusedNote requests={requests} />;
  return (
    <div class="refused" role="alert">
      <p>{named === 1 ? "One field has to be corrected." : `${named} fields have to be corrected.`}</p>
      {problems.get("")?.map((p) => <p key={p.what}>{[p.field, problemText(p)].filter(Boolean).join(": ")}</p>)}
    </div>
  );
}

interface ByNameProps {
  name: string;
  label: string;
  sure: string;
  choice: string;
  /** What may be ticked once the server has refused because others need it. */
  anyway?: string;
  children?: ComponentChildren;
  onDo: (anyway: boolean) => Promise<unknown>;
}

/** A button for what cannot be undone: it is off until the name was typed. */
export function ByName({ name, label, sure, choice, anyway, children, onDo }: ByNameProps) {
  const requests = useRequests();
  const [typed, setTyped] = useState("");
  const [ticked, setTicked] = useState(false);
  return (
    <details class="by-name" data-by-name={choice}>
      <summary>{label}</summary>
      <form
        class="install"
        onSubmit={(e) => {
          e.preventDefault();
          if (typed === name) requests.run(choice, () => onDo(ticked));
        }}
      >
        {children}
        <label>
          Type <code>{name}</code> to confirm <input name="confirm" autocomplete="off" spellcheck={false} value={typed} onInput={(e) => setTyped(e.currentTarget.value)} />
        </label>
        {anyway && (ticked || requests.refused?.status === 409) && (
          <label>
            <input type="checkbox" name="anyway" checked={ticked} onChange={(e) => setTicked(e.currentTarget.checked)} /> {anyway}
          </label>
        )}
        <div class="buttons">
          <button class="danger" data-choice={choice} disabled={typed !== name || requests.busy !== ""}>
            {sure}
          </button>
        </div>
        <RefusedNote requests={requests} />
      </form>
    </details>
  );
}
