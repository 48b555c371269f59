import { useEffect, useState } from "preact/hooks";
import { api, Refused } from "./api";
import type { Problem } from "./api";
import { Editor } from "./editor";
import { ByName, Field } from "./form";
import { useLoaded } from "./loaded";
import { RefusedNote, useRequests } from "./request";
import { go, pathTo } from "./route";
import type { Place } from "./route";
import type { Store } from "./store";
import { ago, at } from "./text";
import type { Rendering, Template } from "./types";
import { Side } from "./side";

const example = `version: "0.1"
name: my-template
global_timeout: 3600
tasks:
  - name: os
    worker: "{{.device_1}}"
    actions:
`;

/** The templates, and one of them or a new one to edit. */
export function Templates({ store, place, now }: { store: Store; place: Place; now: number }) {
  const templates = useLoaded("templates", api.templates);
  const all = templates.value ?? [];
  const chosen = place.view === "templates" ? all.find((t) => t.name === place.name) : undefined;
  return (
    <main class="columns">
      <section class="list" aria-label="Templates">
        {!store.idle && (
          <p class="acts">
            <a href={pathTo("new", "template")}>Add a template</a>
          </p>
        )}
        <RefusedNote requests={templates} />
        {all.length > 0 && (
          <div class="scroll" tabIndex={0} role="region" aria-label="Table of templates">
            <table class="catalog">
              <thead>
                <tr>
                  <th scope="col">Template</th>
                  <th scope="col">Changed</th>
                </tr>
              </thead>
              <tbody>
                {all.map((t) => (
                  <tr key={t.name} data-template={t.name} aria-current={t.name === place.name ? "true" : undefined} onClick={() => go(pathTo("templates", t.name))}>
                    <th scope="row">
                      <a href={pathTo("templates", t.name)}>{t.name}</a>
                    </th>
                    <td class="quiet">{t.builtin ? "comes with Ingot" : at(t.updated) > 0 && ago(at(t.updated), now)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </section>
      <Side store={store} back={pathTo("templates")} all="All templates">
        {place.view === "new" ? (
          <TemplatePanel key="new" store={store} names={templates.value?.map((t) => t.name)} changed={templates.again} />
        ) : chosen ? (
          <TemplatePanel key={chosen.name} template={chosen} store={store} changed={templates.again} />
        ) : (
          <section class="panel">
            <p>{place.name && templates.value ? `There is no template named “${place.name}”.` : "Choose a template on the left."}</p>
          </section>
        )}
      </Side>
    </main>
  );
}

function TemplatePanel({ template: t, store, names, changed }: { template?: Template; store: Store; names?: readonly string[] | undefined; changed: () => void }) {
  const requests = useRequests();
  // What is edited stays when another stores the template: the save is then refused.
  const [base, setBase] = useState(t);
  const [source, setSource] = useState(t?.source ?? example);
  const [problems, setProblems] = useState<readonly Problem[]>([]);
  const [machine, setMachine] = useState("");
  const [rendered, setRendered] = useState<Rendering>();
  const [said, setSaid] = useState("");
  const edited = source !== (base?.source ?? "");
  useEffect(() => {
    if (t && base && !edited && t.updated !== base.updated) {
      setBase(t);
      setSource(t.source);
    }
  }, [t?.updated]);
  /** Sends f; its problems are shown at their lines. */
  const run = (name: string, f: () => Promise<void>) =>
    requests.run(name, async () => {
      setSaid("");
      setRendered(undefined);
      setProblems([]);
      try {
        await f();
      } catch (e) {
        if (e instanceof Refused && e.problems.some((p) => p.line)) setProblems(e.problems);
        else throw e;
      }
    });
  const save = () =>
    run("save", async () => {
      const name = base?.name ?? /^name:[ \t]*["']?([A-Za-z0-9._-]+)/m.exec(source)?.[1] ?? "";
      if (!base && names?.includes(name)) throw new Refused(0, `There is a template named “${name}” already: open it, or choose another name.`);
      try {
        const stored = await api.putTemplate(base?.name, source, base?.updated);
        setBase(stored);
        setSaid("Saved.");
        changed();
        if (!base) go(pathTo("templates", stored.name));
      } catch (e) {
        if (e instanceof Refused && e.status === 412) throw new Refused(412, "Another has changed this template since it was opened. Copy what you typed, open the template again, and change that.");
        throw e;
      }
    });
  return (
    <section class="panel" aria-labelledby="panel-name" data-template-panel={base?.name ?? "new"}>
      <div class="panel-head">
        <h2 id="panel-name">{base?.name ?? "Add a template"}</h2>
        {base?.builtin && <span class="quiet">comes with Ingot, cannot be changed</span>}
      </div>
      <Editor id="source" text={source} label="Source of the template" problems={problems} readOnly={!!base?.builtin} onText={setSource} />
      {!base?.builtin && (
        <div class="buttons">
          <button type="button" class="primary" data-choice="save" disabled={!edited || !(base || names) || requests.busy !== ""} onClick={save}>
            {base ? "Save" : "Add"}
          </button>
          <span role="status" data-said>
            {said || (problems.length > 0 ? `${problems.length} ${problems.length === 1 ? "thing has" : "things have"} to be corrected.` : "")}
          </span>
        </div>
      )}
      <form
        class="form"
        data-render
        onSubmit={(e) => {
          e.preventDefault();
          run("render", async () => setRendered(await api.render(base?.name ?? "new", machine, source)));
        }}
      >
        <fieldset>
          <legend>What it would do</legend>
          <Field form={{ texts: { machine }, problems: new Map(), change: (_, text) => setMachine(text) }} name="machine" label="To the machine" kind="choice" required options={[["", "choose one"], ...store.names.map((n) => [n, n] as const)]} />
          <button data-choice="render" disabled={requests.busy !== ""}>
            Show
          </button>
        </fieldset>
      </form>
      <RefusedNote requests={requests} />
      {rendered && <Rendered rendering={rendered} />}
      {base && !base.builtin && (
        <ByName
          name={base.name}
          label={`Delete ${base.name}`}
          sure="Delete it"
          choice="delete-template"
          onDo={async () => {
            await api.deleteTemplate(base.name);
            changed();
            go(pathTo("templates"));
          }}
        />
      )}
    </section>
  );
}

function Rendered({ rendering: r }: { rendering: Rendering }) {
  return (
    <section aria-label="What it would do" data-rendered>
      {r.warnings?.map((w) => (
        <p key={w} class="text failure">
          {w}
        </p>
      ))}
      <ol class="rendered">
        {r.actions?.map((a, i) => (
          <li key={i}>
            <b>{a.name}</b> <code>{a.image}</code> <span class="quiet">{a.timeout} s</span>
            <dl class="facts tall">
              {Object.entries(a.environment ?? {}).map(([k, v]) => (
                <div key={k}>
                  <dt>{k}</dt>
                  <dd class="text">{v}</dd>
                </div>
              ))}
            </dl>
          </li>
        ))}
      </ol>
    </section>
  );
}
