import { useEffect, useState } from "preact/hooks";
import { api, Refused } from "./api";
import { RefusedNote, useRequests } from "./request";
import { pathTo } from "./route";
import { bytes } from "./text";
import type { Disk, MachineView } from "./types";

/** The template that is used when neither machine nor operator names one. */
const usual = "image";

/** Says what an installation would overwrite; "" when nothing is known to be there. */
export function atStake(m: MachineView, disks: Disk[]): string {
  const kept = disks.filter((d) => d.written || !d.blank);
  if (kept.length > 0) return kept.map((d) => `${bytes(d.size)} ${d.serial || d.path}: ${d.written ? "written by Ingot" : (d.signatures ?? []).join(", ") || "not blank"}`).join("; ");
  if (m.installed && !m.installed.noSystem) return `${m.installed.image || m.installed.template || "a system"} is installed`;
  if (m.installed) return `the last run${m.installed.template ? ` (${m.installed.template})` : ""} wrote no system, so an earlier one may still be there`;
  const w = m.workflow;
  return w && (w.type === undefined || w.type === "Provision" || w.type === "Reprovision") && w.state === "SUCCESS" && !w.noSystem ? `${w.image || w.template || "a system"} is installed` : "";
}

interface Offer {
  images: string[];
  templates: string[];
  disks: Disk[];
  installed: MachineView["installed"];
}

/** Loads what can be chosen for a machine, and what is there. Without all of it nothing is offered. */
async function offerOf(machine: string): Promise<Offer> {
  const names = (all: { name: string }[]) => all.map((x) => x.name);
  const [images, templates, disks, whole] = await Promise.all([
    api.images().then(names),
    api.templates().then(names),
    api.disks(machine).catch((e: unknown) => {
      if (e instanceof Refused && e.status === 404) return []; // no agent has listed the disks yet
      throw e;
    }),
    api.machine(machine),
  ]);
  return { images, templates, disks, installed: whole.installed };
}

/** Installs a machine with the image and the template that are chosen. What is there has to be given up by name. */
export function Install({ machine: m }: { machine: MachineView }) {
  const requests = useRequests();
  const [offer, setOffer] = useState<Offer>();
  const [template, setTemplate] = useState(m.template || usual);
  const [image, setImage] = useState(m.image ?? "");
  const [typed, setTyped] = useState("");
  const [started, setStarted] = useState(false);
  const look = () => requests.run("look", async () => setOffer(await offerOf(m.name)));
  useEffect(look, [m.name]);
  if (!offer)
    return requests.refused ? (
      <>
        <RefusedNote requests={requests} />
        <div class="buttons">
          <button type="button" data-choice="load-again" onClick={look}>
            Try again
          </button>
        </div>
      </>
    ) : null;
  const stake = atStake({ ...m, installed: offer.installed }, offer.disks);
  const missing = template === usual && !image;
  const option = (name: string) => (
    <option key={name} value={name}>
      {name}
    </option>
  );
  const some = (names: string[], own: string | undefined) => [...new Set([...(own ? [own] : []), ...names])];
  const begin = () =>
    requests.run("install", async () => {
      await api.install(m.name, stake ? "reprovision" : "provision", { template, ...(image ? { image } : {}) });
      setTyped("");
      setStarted(true);
    });
  return (
    <form
      class="install"
      data-install={m.name}
      onSubmit={(e) => {
        e.preventDefault();
        begin();
      }}
    >
      <label>
        Template{" "}
        <select name="template" value={template} onChange={(e) => setTemplate(e.currentTarget.value)}>
          {some(offer.templates, m.template || usual).map(option)}
        </select>
      </label>
      <label>
        Image{" "}
        <select name="image" value={image} onChange={(e) => setImage(e.currentTarget.value)}>
          <option value="">{template === usual ? "choose one" : "from the template"}</option>
          {some(offer.images, m.image).map(option)}
        </select>
      </label>
      {offer.images.length === 0 && template === usual && (
        <p class="quiet">
          There is no image yet: <a href={pathTo("new", "image")}>add one</a>.
        </p>
      )}
      {stake && (
        <>
          <p class="failure" data-stake>
            This wipes what is there: {stake}.
          </p>
          <label>
            Type <code>{m.name}</code> to give it up <input name="confirm" autocomplete="off" value={typed} onInput={(e) => setTyped(e.currentTarget.value)} />
          </label>
        </>
      )}
      <div class="buttons">
        <button class={stake ? "danger" : "primary"} data-choice="install" disabled={missing || (stake !== "" && typed !== m.name) || requests.busy !== ""}>
          {stake ? "Wipe and install" : "Install"}
        </button>
        {started && <span role="status">Started.</span>}
      </div>
      <RefusedNote requests={requests} />
    </form>
  );
}
