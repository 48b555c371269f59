import { useEffect, useRef, useState } from "preact/hooks";
import { api } from "./api";
import { matches } from "./list";
import { pathTo } from "./route";
import type { Store } from "./store";
import type { MachineView, Operation, Workflow } from "./types";

/** What a search looks through. */
export interface Haystack {
  machines: Iterable<MachineView>;
  operations: Iterable<Operation>;
  images: readonly string[];
  templates: readonly string[];
  /** The newest runs. */
  runs: readonly Workflow[];
}

export interface Hit {
  name: string;
  /** What tells it from others of the same name. */
  about: string;
  link: string;
}

/** How many hits of one kind are shown. */
const shown = 6;

/** Finds text, which is in lower case, in everything; each kind with the number of all its hits. */
export function find(text: string, h: Haystack): { kind: string; count: number; hits: Hit[] }[] {
  const kind = (name: string, all: Hit[]) => ({ kind: name, count: all.length, hits: all.slice(0, shown) });
  const has = (...words: (string | undefined)[]) => words.some((w) => w?.toLowerCase().includes(text));
  const named = (view: string, names: readonly string[]) => names.filter((n) => has(n)).map((n) => ({ name: n, about: "", link: pathTo(view, n) }));
  const machines: Hit[] = [];
  for (const m of h.machines) if (matches(m, text)) machines.push({ name: m.name, about: m.interfaces?.find((i) => i.address)?.address ?? "", link: pathTo("machines", m.name) });
  const operations = [...h.operations].filter((o) => has(o.type, o.name, o.run)).map((o) => ({ name: `${o.type} ${o.name}`, about: o.state.toLowerCase(), link: pathTo("operations", o.run) }));
  const runs = h.runs
    .filter((w) => has(w.run, w.machine, w.template, w.image, w.message))
    .map((w) => ({ name: `${w.type ?? "Provision"} of ${w.machine}`, about: [w.state?.toLowerCase(), w.started?.slice(0, 16).replace("T", " ")].filter(Boolean).join(", "), link: pathTo("runs", w.run) }));
  return [kind("Machines", machines), kind("Operations", operations), kind("Images", named("images", h.images)), kind("Templates", named("templates", h.templates)), kind("Runs", runs)].filter((k) => k.count > 0);
}

/** A run's id as a whole: it is found however old the run is. */
const runID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** Searches machines, operations, images, templates and runs. */
export function Search({ store }: { store: Store }) {
  const [text, setText] = useState("");
  const [far, setFar] = useState<{ images: string[]; templates: string[]; runs: Workflow[] }>({ images: [], templates: [], runs: [] });
  const [failed, setFailed] = useState("");
  const box = useRef<HTMLElement>(null);
  const asked = text.trim().toLowerCase();
  const open = asked !== "";
  useEffect(() => {
    if (!open) return;
    let gone = false;
    const names = (all: { name: string }[]) => all.map((x) => x.name);
    Promise.all([api.images().then(names), api.templates().then(names), api.newestRuns(200)]).then(
      ([images, templates, runs]) => !gone && (setFar({ images, templates, runs }), setFailed("")),
      (e: unknown) => !gone && setFailed(e instanceof Error ? e.message : String(e)),
    );
    return () => {
      gone = true;
    };
  }, [open]);
  useEffect(() => {
    if (!runID.test(asked) || far.runs.some((w) => w.run === asked)) return;
    // A run that is unknown is no hit.
    api.run(asked).then((w) => setFar((f) => ({ ...f, runs: [w, ...f.runs] })), () => undefined);
  }, [asked, far]);
  useEffect(() => {
    const close = () => setText("");
    addEventListener("hashchange", close);
    return () => removeEventListener("hashchange", close);
  }, []);
  const kinds = open ? find(asked, { machines: store.machines.values(), operations: store.operations.values(), ...far }) : [];
  const count = kinds.reduce((n, k) => n + k.count, 0);
  return (
    <search
      ref={box}
      class="search"
      onKeyDown={(e) => {
        if (e.key !== "Escape") return;
        setText("");
        box.current?.querySelector("input")?.focus();
      }}
    >
      <form
        onSubmit={(e) => {
          e.preventDefault();
          const first = kinds[0]?.hits[0];
          if (first) location.hash = first.link;
        }}
      >
        <input type="search" name="everything" aria-label="Search everything" placeholder="Search everything" autocomplete="off" spellcheck={false} value={text} onInput={(e) => setText(e.currentTarget.value)} />
      </form>
      <span class="sr" role="status">
        {open && `${count} found`}
      </span>
      {open && (
        <div class="found" data-found={count}>
          {failed && <p class="failure">{failed}</p>}
          {count === 0 && <p class="quiet">Nothing is found.</p>}
          {kinds.map((k) => (
            <div key={k.kind}>
              <h2>
                {k.kind} <span class="quiet">{k.count > k.hits.length ? `${k.hits.length} of ${k.count}` : k.count}</span>
              </h2>
              <ul>
                {k.hits.map((h) => (
                  <li key={h.link}>
                    <a href={h.link} onClick={() => setText("")}>
                      {h.name}
                    </a>{" "}
                    <span class="quiet">{h.about}</span>
                  </li>
                ))}
              </ul>
            </div>
          ))}
        </div>
      )}
    </search>
  );
}
