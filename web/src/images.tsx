import { useState } from "preact/hooks";
import { api } from "./api";
import type { Doc } from "./document";
import { ByName, Field, FormNote, problemsOf } from "./form";
import type { Form } from "./form";
import { useLoaded } from "./loaded";
import { RefusedNote, useRequests } from "./request";
import { go, pathTo } from "./route";
import type { Place } from "./route";
import type { Store } from "./store";
import { isOpen } from "./transfers";
import type { Transfer } from "./transfers";
import { at, bytes, clock } from "./text";
import type { Image } from "./types";
import { Side } from "./side";

const what = (i: Image) => (i.use === "installer" ? "installer" : i.use || "disk image");

/** The images, those on their way, and one of them or the form that adds one. */
export function Images({ store, place, now }: { store: Store; place: Place; now: number }) {
  const finished = [...store.transfers.all.values()].filter((t) => !isOpen(t)).length;
  const images = useLoaded(`images ${finished}`, async () => {
    const [all, unused] = await Promise.all([api.images(), api.unusedImages()]);
    return { all, unused: new Set(unused.map((i) => i.name)) };
  });
  const { all = [], unused = new Set<string>() } = images.value ?? {};
  const chosen = place.view === "images" ? all.find((i) => i.name === place.name) : undefined;
  return (
    <main class="columns">
      <section class="list" aria-label="Images">
        {[...store.transfers.all.values()].map((t) => (
          <TransferRow key={t.image} transfer={t} store={store} />
        ))}
        {!store.idle && (
          <p class="acts">
            <a href={pathTo("new", "image")}>Add an image</a>
          </p>
        )}
        <RefusedNote requests={images} />
        {images.value && all.length === 0 && <p class="quiet">No images yet.</p>}
        {all.length > 0 && (
          <div class="scroll" tabIndex={0} role="region" aria-label="Table of images">
            <table class="catalog">
              <thead>
                <tr>
                  <th scope="col">Image</th>
                  <th scope="col">What it is</th>
                  <th scope="col" class="of-size">
                    Size
                  </th>
                  <th scope="col" class="of-users">
                    Named by
                  </th>
                </tr>
              </thead>
              <tbody>
                {all.map((i) => (
                  <tr key={i.name} data-image={i.name} aria-current={i.name === place.name ? "true" : undefined} onClick={() => go(pathTo("images", i.name))}>
                    <th scope="row">
                      <a href={pathTo("images", i.name)}>{i.name}</a>
                    </th>
                    <td>
                      {what(i)}
                      {i.contents && <span class="quiet"> · {i.contents}</span>}
                      {i.warning && <span class="failure"> · {i.warning}</span>}
                    </td>
                    <td class="of-size">{bytes(i.size)}</td>
                    <td class="quiet of-users">{unused.has(i.name) ? "nothing" : "something"}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </section>
      <Side store={store} back={pathTo("images")} all="All images">
        {place.view === "new" ? (
          <AddImage store={store} />
        ) : chosen ? (
          <ImagePanel key={chosen.name} image={chosen} now={now} changed={images.again} />
        ) : (
          <section class="panel">
            <p>{place.name && images.value ? `There is no image named “${place.name}”.` : "Choose an image on the left."}</p>
          </section>
        )}
      </Side>
    </main>
  );
}

const states: Record<Transfer["state"], string> = {
  reading: "Reading the file",
  sending: "Sending",
  waiting: "The connection broke; it goes on soon",
  checking: "The server checks it",
  fetching: "The server fetches it",
  done: "Done",
  failed: "Failed",
};

function TransferRow({ transfer: t, store }: { transfer: Transfer; store: Store }) {
  const words = `${t.total ? `${bytes(t.done)} of ${bytes(t.total)}` : t.done ? bytes(t.done) : ""}`;
  return (
    <div class={`row transfer ${t.state === "failed" ? "failed" : t.state === "done" ? "done" : t.state === "waiting" ? "waiting" : "working"}`} data-transfer={t.image} data-state={t.state}>
      <span class="row-top">
        <span class="name">{t.image}</span> <span role="status">{states[t.state]}</span> {isOpen(t) && <span class="quiet">{words}</span>}
      </span>
      {isOpen(t) && <progress {...(t.total ? { value: t.done, max: t.total } : {})} aria-label={`${t.image}: ${states[t.state]} ${words}`} />}
      {t.why && t.state !== "done" && <span class="text failure">{t.why.message}</span>}
      {!isOpen(t) && (
        <span class="buttons">
          {t.state === "failed" && (
            <button type="button" data-choice="go-on" disabled={store.idle} onClick={() => void t.again().catch(() => undefined)}>
              Go on
            </button>
          )}
          {t.state === "done" && <a href={pathTo("images", t.image)}>Show it</a>}
          <button type="button" data-choice="forget" onClick={() => store.transfers.forget(t.image)}>
            Take it off this list
          </button>
        </span>
      )}
    </div>
  );
}

function Fact({ name, children }: { name: string; children: unknown }) {
  if (!children) return null;
  return (
    <div>
      <dt>{name}</dt>
      <dd>{String(children)}</dd>
    </div>
  );
}

function ImagePanel({ image: i, now, changed }: { image: Image; now: number; changed: () => void }) {
  const requests = useRequests();
  const [verified, setVerified] = useState("");
  return (
    <section class="panel" aria-labelledby="panel-name" data-image-panel={i.name}>
      <div class="panel-head">
        <h2 id="panel-name">{i.name}</h2>
        <span class="quiet">{what(i)}</span>
      </div>
      {i.warning && <p class="text failure">{i.warning}</p>}
      <dl class="facts tall">
        <Fact name="holds">{i.contents}</Fact>
        <Fact name="starts by">{i.boots?.join(", ")}</Fact>
        <Fact name="size">{`${bytes(i.size)}, ${i.format}`}</Fact>
        <Fact name="on the disk">{i.diskSize && bytes(i.diskSize)}</Fact>
        <Fact name="sectors of">{i.sectorSize && `${i.sectorSize} bytes`}</Fact>
        <Fact name="SHA-256">{i.sha256}</Fact>
        <Fact name="digest">{i.firstSeen ? "computed here: nobody declared it" : "as declared"}</Fact>
        <Fact name="made from">{i.source && `${i.source.format}, ${bytes(i.source.size)}, SHA-256 ${i.source.sha256}`}</Fact>
        <Fact name="from">{i.url}</Fact>
        <Fact name="lies at">{i.inPlace?.path}</Fact>
        <Fact name="stored">{at(i.created) > 0 && clock(at(i.created), now)}</Fact>
      </dl>
      <div class="buttons">
        <button
          type="button"
          data-choice="verify"
          disabled={requests.busy !== ""}
          onClick={() =>
            requests.run("verify", async () => {
              setVerified("");
              const r = await api.verifyImage(i.name);
              setVerified(r.ok ? "The file is as it was stored." : (r.message ?? "The file has changed."));
            })
          }
        >
          Read it again
        </button>
        <span role="status">{requests.busy === "verify" ? "Reading…" : verified}</span>
      </div>
      <RefusedNote requests={requests} />
      <ByName
        name={i.name}
        label={`Delete ${i.name}`}
        sure="Delete it"
        choice="delete-image"
        anyway="Delete it although they name it"
        onDo={async (anyway) => {
          await api.deleteImage(i.name, anyway);
          changed();
          go(pathTo("images"));
        }}
      >
        <p>Refused while machines, templates or lab files name it, or a run needs it: then this says which.</p>
      </ByName>
    </section>
  );
}

const ways = [
  ["catalogue", "from the catalogue"],
  ["url", "from a URL, by the server"],
  ["upload", "from this computer"],
] as const;

function AddImage({ store }: { store: Store }) {
  const requests = useRequests();
  const [texts, setTexts] = useState<Record<string, string>>({ way: "catalogue" });
  const [file, setFile] = useState<File>();
  const catalog = useLoaded("catalog", api.catalog);
  const names = ["name", "url", "sha256", "use", "asIs", "replace"];
  const problems = problemsOf(requests, names);
  const form: Form = { texts, problems, change: (f, text) => setTexts((t) => ({ ...t, [f]: text })) };
  const way = texts.way;
  const offered = catalog.value?.find((o) => o.name === texts.name);
  const add = () =>
    requests.run("add", async () => {
      const name = (texts.name ?? "").trim();
      const replace = texts.replace ? { replace: true } : {};
      const how = { sha256: texts.sha256?.trim() || undefined, use: texts.use || undefined, asIs: texts.asIs ? true : undefined, ...replace };
      if (way === "upload") await store.transfers.upload(name, file!, how);
      else await store.transfers.fetch(name, (way === "catalogue" ? { name, catalog: true, ...replace } : { name, url: texts.url?.trim(), ...how }) as Doc);
      store.transfers.forget(name);
      if (location.hash === pathTo("new", "image")) go(pathTo("images", name));
    });
  return (
    <section class="panel" aria-labelledby="panel-name" data-add="image">
      <div class="panel-head">
        <h2 id="panel-name">Add an image</h2>
      </div>
      <form
        class="form"
        data-image-form={way}
        onSubmit={(e) => {
          e.preventDefault();
          add();
        }}
      >
        <Field form={form} name="way" label="It comes" kind="choice" options={ways} />
        {way === "catalogue" ? (
          <>
            <Field form={form} name="name" label="Image" kind="choice" required options={[["", catalog.value ? "choose one" : "…"], ...(catalog.value ?? []).map((o) => [o.name, o.name] as const)]} note={offered && [offered.about, offered.user && `log in as ${offered.user}`].filter(Boolean).join("; ")} />
            <RefusedNote requests={catalog} />
          </>
        ) : (
          <>
            {way === "url" ? (
              <Field form={form} name="url" label="URL" required placeholder="https://" />
            ) : (
              <div class="field" data-field="file">
                <label for="field-file">File</label>
                <input
                  id="field-file"
                  type="file"
                  required
                  onChange={(e) => {
                    const f = e.currentTarget.files?.[0];
                    setFile(f);
                    if (f && !texts.name) form.change("name", nameOf(f.name));
                  }}
                />
              </div>
            )}
            <Field form={form} name="name" label="Name" required note="lower-case letters, digits and . _ -" />
            <Field form={form} name="sha256" label="SHA-256" note="as its publisher declares it; empty: computed here" />
            <Field form={form} name="use" label="Use" kind="choice" options={[["", "a disk image"], ["installer", "a file of an installer"]]} />
            <Field form={form} name="asIs" label="Keep the file as it is" kind="check" note="otherwise it is packed in blocks" />
          </>
        )}
        {(requests.refused?.status === 409 || texts.replace) && <Field form={form} name="replace" label="Replace it" kind="check" note="those that name it install the new file from then on" />}
        <div class="buttons">
          <button class="primary" data-choice="add-image" disabled={requests.busy !== ""}>
            Add
          </button>
          {requests.busy === "add" && <span role="status">It goes on while you look at something else; the list on the left says how far it is.</span>}
        </div>
        <FormNote requests={requests} problems={problems} />
      </form>
    </section>
  );
}

/** Returns a name for the image in a file. */
export function nameOf(file: string): string {
  return file
    .toLowerCase()
    .replace(/(\.(raw|img|qcow2|iso|gz|xz|zst|bz2))+$/, "")
    .replace(/[^a-z0-9._-]+/g, "-")
    .replace(/^[^a-z0-9]+|[^a-z0-9]+$/g, "");
}
