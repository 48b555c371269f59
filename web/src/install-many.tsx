import { useState } from "preact/hooks";
import { api } from "./api";
import type { Doc } from "./document";
import { Field, FormNote, problemsOf } from "./form";
import type { Form } from "./form";
import { useLoaded } from "./loaded";
import { Ask, useRequests } from "./request";
import { go, pathTo } from "./route";

const two = (n: number) => String(n).padStart(2, "0");

/** Returns the name that the command line would give: provision- and the time. */
export function operationName(now: Date): string {
  return `provision-${now.getFullYear()}${two(now.getMonth() + 1)}${two(now.getDate())}-${two(now.getHours())}${two(now.getMinutes())}${two(now.getSeconds())}`;
}

const counts = ["concurrency", "canary", "abortAfter"];

/** Returns the request that a form describes; a count that is no number goes to the server as it is. */
export function inputOf(texts: Record<string, string>, name: string): Doc {
  const machines = (texts.machines ?? "").split(/[\s,]+/).filter(Boolean);
  const input: Doc = { name };
  if (machines.length > 0) input.machines = machines;
  for (const f of ["selector", "template", "image"]) if (texts[f]?.trim()) input[f] = texts[f].trim();
  for (const f of counts) if (texts[f]?.trim()) input[f] = /^\d+$/.test(texts[f].trim()) ? Number(texts[f]) : texts[f].trim();
  return input;
}

/** Installs many machines for the first time: those that were shown before. */
export function InstallMany() {
  const requests = useRequests();
  const [name] = useState(() => operationName(new Date()));
  const [texts, setTexts] = useState<Record<string, string>>({ concurrency: "2", canary: "1" });
  const [shown, setShown] = useState<string[]>();
  const offer = useLoaded("offer", async () => ({ images: await api.names("images"), templates: await api.names("templates") }));
  const problems = problemsOf(requests, ["machines", "selector", "template", "image", ...counts]);
  const form: Form = {
    texts,
    problems,
    change: (f, text) => {
      // Another form is another list.
      setShown(undefined);
      setTexts((t) => ({ ...t, [f]: text }));
    },
  };
  const input = inputOf(texts, name);
  const canaries = Number(input.canary ?? 0);
  const start = () =>
    requests.run("start", async () => {
      const { selector: _, ...rest } = input;
      go(pathTo("operations", await api.installMany({ ...rest, machines: shown! })));
    });
  const some = (names: string[] | undefined) => [["", "each machine's own"] as const, ...(names ?? []).map((n) => [n, n] as const)];
  return (
    <section class="panel" aria-labelledby="panel-name" data-add="installation">
      <div class="panel-head">
        <h2 id="panel-name">Install many machines</h2>
      </div>
      <p class="quiet">For the first time: a machine that may hold a system is refused.</p>
      <form
        class="form"
        onSubmit={(e) => {
          e.preventDefault();
          requests.run("show", async () => setShown(await api.previewMany(input)));
        }}
      >
        <fieldset>
          <legend>Which</legend>
          <Field form={form} name="selector" label="By labels" placeholder="rack=r01,role!=db" note="as kubectl writes them: =, !=, in (…), notin (…), key, !key" />
          <Field form={form} name="machines" label="Or by name" kind="area" note="one on a line" />
        </fieldset>
        <fieldset>
          <legend>How</legend>
          <Field form={form} name="image" label="Image" kind="choice" options={some(offer.value?.images)} />
          <Field form={form} name="template" label="Template" kind="choice" options={some(offer.value?.templates)} />
          <Field form={form} name="canary" label="First" note="so many are installed before any other is started; empty: none" />
          <Field form={form} name="concurrency" label="At once" />
          <Field form={form} name="abortAfter" label="Stop after" note="so many have failed or wait; empty: never" />
        </fieldset>
        <div class="buttons">
          <button class={shown ? undefined : "primary"} data-choice="preview" disabled={requests.busy !== ""}>
            Show the machines
          </button>
        </div>
        <FormNote requests={requests} problems={problems} />
      </form>
      {shown && (
        <section aria-label="Machines to install" data-preview={shown.length}>
          <h3>
            {shown.length} {shown.length === 1 ? "machine" : "machines"}
          </h3>
          <ol class="names">
            {shown.map((m, i) => (
              <li key={m}>
                {m} {i < canaries && <span class="quiet">first</span>}
              </li>
            ))}
          </ol>
          <div class="buttons">
            <Ask choice="install-many" kind="primary" label={`Install ${shown.length}`} sure={`Yes, install ${shown.length}`} note="What is on their disks is lost." disabled={shown.length === 0 || requests.busy !== ""} onDo={start} />
          </div>
        </section>
      )}
    </section>
  );
}
