import { useEffect, useRef, useState } from "preact/hooks";
import { api, Refused } from "./api";
import { Command } from "./command";
import { both, diff, docOf, documentOf, draftOf, driverFields, fields, merge, yamlOf } from "./document";
import type { Doc, Draft } from "./document";
import { Editor } from "./editor";
import { ByName, Field, FormNote, problemsOf } from "./form";
import type { Form } from "./form";
import { RefusedNote, useRequests } from "./request";
import { go, pathTo } from "./route";
import type { Store } from "./store";
import { bytes } from "./text";
import type { Seen } from "./types";

const empty: Doc = { interfaces: [{}] };

const drivers: [string, string][] = [
  ["", "by hand: an operator presses the button"],
  ["ipmi", "IPMI"],
  ["redfish", "Redfish"],
  ["amt", "Intel AMT"],
  ["wol", "wake-on-LAN, off by hand"],
  ["rpc", "a service (rpc)"],
  ["exec", "a command of the server (exec)"],
];

const bmcFields: Record<string, { label: string; note?: string; kind?: "password" | "check" }> = {
  host: { label: "Host", note: "address or name" },
  port: { label: "Port", note: "empty: the usual one" },
  user: { label: "User" },
  password: { label: "Password", kind: "password" },
  fingerprint: { label: "Key fingerprint", note: "sha256:…, pins the certificate's key" },
  insecureTLS: { label: "Accept any certificate", kind: "check" },
  mac: { label: "MAC address to wake", note: "empty: the MAC of the first interface" },
  consumerURL: { label: "URL of the service" },
  command: { label: "Command", note: "an entry of power.commands" },
};

/** The parts of a document that are edited as YAML. */
const parts = [
  ["network", "Network", "cards, bonds, VLANs, routes; empty: derived from the interfaces"],
  ["storage", "Storage", "how the action rootio lays out the disks"],
] as const;

const yamlsOf = (doc: Doc): Record<string, string> => Object.fromEntries(parts.map(([f]) => [f, yamlOf(doc[f])]));

/** What the server holds of the secrets of a machine. */
interface Stored {
  version: number;
  password: boolean;
  userData: boolean;
}

const storedOf = (m: Doc): Stored => ({ version: Number(m.version ?? 0), password: !!(m.bmc as Doc | undefined)?.hasPassword, userData: !!m.hasUserData });

/** Adds a machine, or changes the one that is given. */
export function MachineForm({ name, machine }: { name: string; machine?: Doc }) {
  const requests = useRequests();
  const [base, setBase] = useState(() => (machine ? documentOf(machine) : empty));
  const [stored, setStored] = useState(() => storedOf(machine ?? {}));
  const [draft, setDraft] = useState<Draft>(() => draftOf(base));
  const [yamls, setYAMLs] = useState(() => yamlsOf(base));
  const [secrets, setSecrets] = useState<Record<string, string>>({});
  const [conflict, setConflict] = useState<{ theirs: string[]; both: string[] }>();
  const [said, setSaid] = useState<string[]>();
  const [offer, setOffer] = useState<{ images: string[]; templates: string[] }>({ images: [], templates: [] });
  const box = useRef<HTMLFormElement>(null);
  useEffect(() => {
    // Without the names there is still what the machine has.
    void Promise.all([api.names("images"), api.names("templates")]).then(([images, templates]) => setOffer({ images, templates }), () => undefined);
  }, []);
  useEffect(() => {
    if (requests.refused) box.current?.querySelector<HTMLElement>('[aria-invalid="true"]')?.focus();
  }, [requests.refused]);

  const names = [...Object.keys(draft.texts), "bmc.password", "userData", ...(machine ? parts.map(([f]) => f) : []), ...draft.nics.flatMap((n, i) => Object.keys(n.texts).map((f) => `interfaces[${i}].${f}`))];
  const problems = problemsOf(requests, names);
  const change = (field: string, text: string) => setDraft((d) => ({ ...d, texts: { ...d.texts, [field]: text } }));
  const form: Form = { texts: draft.texts, problems, change };
  const secret: Form = { texts: secrets, problems, change: (field, text) => setSecrets((s) => ({ ...s, [field]: text })) };
  const driver = draft.texts["bmc.driver"] ?? "";

  const save = () =>
    requests.run("save", async () => {
      setSaid(undefined);
      setConflict(undefined);
      const next = docOf(draft, base);
      const given: Doc = {};
      if (secrets["bmc.password"] && driverFields[driver]?.includes("password")) given.bmc = { password: secrets["bmc.password"] };
      if (secrets.userData) given.userData = secrets.userData;
      if (!machine) {
        const warnings = await api.addMachine(merge(next, given));
        if (warnings.length === 0) go(pathTo("machines", String(next.name)));
        else setSaid(warnings);
        return;
      }
      const clear: string[] = [];
      if (stored.password && !next.bmc) clear.push("bmc.password");
      if (stored.userData && secrets.dropUserData) {
        given.userData = null;
        clear.push("userData");
      }
      const mine = diff(base, next);
      const typed = Object.fromEntries(Object.entries(yamls).filter(([f, text]) => text !== yamlOf(base[f])));
      const patch: Doc = { ...mine, ...typed, ...given, ...(given.bmc && { bmc: { ...(mine.bmc as Doc), ...(given.bmc as Doc) } }) };
      try {
        const now = await api.changeMachine(name, stored.version, patch, clear, Object.keys(typed));
        take(now, draftOf(documentOf(now)), {});
        setSecrets({});
        setSaid(((now.warnings as string[] | undefined) ?? []).length > 0 ? (now.warnings as string[]) : ["Saved."]);
      } catch (e) {
        if (!(e instanceof Refused) || e.status !== 412) throw e;
        // What was typed stays, on top of what another has stored.
        const now = await api.document(name);
        const theirs = fields(diff(base, documentOf(now)));
        setConflict({ theirs, both: both([...fields(mine), ...Object.keys(typed)], theirs) });
        take(now, draftOf(merge(documentOf(now), mine)), typed);
      }
    });
  const take = (now: Doc, then: Draft, typed: Record<string, string>) => {
    setBase(documentOf(now));
    setYAMLs({ ...yamlsOf(documentOf(now)), ...typed });
    setStored(storedOf(now));
    setDraft(then);
  };
  const setNIC = (i: number, field: string, text: string) => setDraft((d) => ({ ...d, nics: d.nics.map((n, j) => (i === j ? { ...n, texts: { ...n.texts, [field]: text } } : n)) }));
  const some = (all: string[], none: string, own = "") => [["", none] as const, ...[...new Set([...(own ? [own] : []), ...all])].map((x) => [x, x] as const)];

  return (
    <form
      class="form"
      ref={box}
      data-machine-form={name}
      onSubmit={(e) => {
        e.preventDefault();
        save();
      }}
    >
      <fieldset>
        <legend>Machine</legend>
        {!machine && <Field form={form} name="name" label="Name" required note="lower-case letters, digits and -" />}
        <Field form={form} name="image" label="Image" kind="choice" options={some(offer.images, "chosen at each installation", draft.texts.image)} />
        <Field form={form} name="template" label="Template" kind="choice" options={some(offer.templates, "the usual one", draft.texts.template)} />
        <Field form={form} name="labels" label="Labels" kind="area" note="key=value, one on a line" />
      </fieldset>
      {draft.nics.map((n, i) => {
        const at = (f: string) => `interfaces[${i}].${f}`;
        const nic: Form = { texts: Object.fromEntries(Object.entries(n.texts).map(([f, v]) => [at(f), v])), problems, change: (f, text) => setNIC(i, f.slice(at("").length), text) };
        return (
          <fieldset key={i}>
            <legend>{i === 0 ? "Network interface" : `Network interface ${i + 1}`}</legend>
            <Field form={nic} name={at("mac")} label="MAC address" required />
            <Field form={nic} name={at("address")} label="IP address" note="reserved for it; 10.0.0.11/24 sets the netmask too" />
            <Field form={nic} name={at("netmask")} label="Netmask" />
            <Field form={nic} name={at("gateway")} label="Gateway" />
            <Field form={nic} name={at("nameservers")} label="DNS servers" kind="area" note="one on a line" />
            <Field form={nic} name={at("hostname")} label="Host name" note="empty: the machine's name" />
            <Field form={nic} name={at("vlan")} label="VLAN" />
            <Field form={nic} name={at("arch")} label="Processor" kind="choice" options={[["", "x86_64"], ["aarch64", "aarch64"], ...(n.texts.arch === "x86_64" ? [["x86_64", "x86_64, as stored"] as const] : [])]} />
            <Field form={nic} name={at("uefi")} label="UEFI firmware" kind="check" />
            <Field form={nic} name={at("disableNetboot")} label="Never boots from it" kind="check" />
            {draft.nics.length > 1 && (
              <button type="button" data-choice={`remove-interface-${i}`} onClick={() => setDraft((d) => ({ ...d, nics: d.nics.filter((_, j) => j !== i) }))}>
                Remove this interface
              </button>
            )}
          </fieldset>
        );
      })}
      <div class="buttons">
        <button type="button" data-choice="add-interface" onClick={() => setDraft((d) => ({ ...d, nics: [...d.nics, { was: {}, texts: {} }] }))}>
          One more interface
        </button>
        {problems.get("")?.some((p) => p.field === "interfaces") && <span class="failure">The server wants an interface.</span>}
      </div>
      <fieldset>
        <legend>Power</legend>
        <Field form={form} name="bmc.driver" label="Switched" kind="choice" options={drivers} />
        {(driverFields[driver] ?? []).map((f) =>
          f === "password" ? (
            <Field key={f} form={secret} name="bmc.password" label="Password" kind="password" note={stored.password ? "one is stored: empty keeps it" : undefined} />
          ) : (
            <Field key={f} form={form} name={`bmc.${f}`} {...bmcFields[f]!} />
          ),
        )}
      </fieldset>
      <fieldset>
        <legend>Disk to write</legend>
        <Field form={form} name="diskSelector.serial" label="Serial number" note="all empty: the only disk, if it is blank or Ingot has written it" />
        <Field form={form} name="diskSelector.wwn" label="WWN" />
        <Field form={form} name="diskSelector.byID" label="Name below /dev/disk/by-id" />
      </fieldset>
      <fieldset>
        <legend>Installed system</legend>
        <Field form={form} name="sshKeys" label="SSH keys" kind="area" note="one on a line" />
        <Field form={secret} name="userData" label="User data" kind="area" note={stored.userData ? "is stored, and never shown: empty keeps it" : "for cloud-init or Ignition; a secret"} />
        {stored.userData && <Field form={secret} name="dropUserData" label="Delete the stored user data" kind="check" />}
      </fieldset>
      {machine &&
        parts.map(([f, label, note]) => (
          <fieldset key={f} data-field={f}>
            <legend>{label}, as YAML</legend>
            <p class="quiet">{note}</p>
            <Editor id={f} label={label} text={yamls[f]!} rows={3} problems={problems.get(f) ?? []} onText={(text) => setYAMLs((y) => ({ ...y, [f]: text }))} />
          </fieldset>
        ))}
      {conflict && (
        <div class="refused" role="alert" data-conflict>
          <p>
            {name} was changed by another since this form was opened{conflict.theirs.length > 0 ? `: ${conflict.theirs.join(", ")}.` : "; no field that is shown differs."}
          </p>
          <p>
            {conflict.both.length > 0 ? `Changed here too, and kept as typed: ${conflict.both.join(", ")}. Look at it, then save again.` : "What you typed is kept. Save again."}
          </p>
        </div>
      )}
      {said?.map((w) => (
        <p key={w} role="status" data-said class="text">
          {w}
        </p>
      ))}
      <div class="buttons">
        <button class="primary" data-choice="save" disabled={requests.busy !== ""}>
          {machine ? "Save" : "Add"}
        </button>
        {said && <a href={pathTo("machines", name || draft.texts.name)}>Show {name || draft.texts.name}</a>}
      </div>
      <FormNote requests={requests} problems={problems} />
    </form>
  );
}

/** Loads a machine, and lets it be changed and deleted. */
export function EditMachine({ name }: { name: string }) {
  const requests = useRequests();
  const [machine, setMachine] = useState<Doc>();
  const load = () => requests.run("load", async () => setMachine(await api.document(name)));
  useEffect(load, [name]);
  return (
    <section class="panel" aria-labelledby="panel-name" data-edit={name}>
      <div class="panel-head">
        <h2 id="panel-name">Edit {name}</h2>
        <a href={pathTo("machines", name)}>Back to {name}</a>
      </div>
      <RefusedNote requests={requests} />
      {machine && (
        <>
          <MachineForm name={name} machine={machine} />
          <p class="quiet">
            What has no field here: <Command text={`ingot machine edit ${name}`} />
          </p>
          <ByName
            name={name}
            label={`Delete ${name}`}
            sure="Delete it"
            choice="delete-machine"
            onDo={async () => {
              await api.deleteMachine(name);
              go("#/");
            }}
          >
            <p>The machine, its secrets and its reserved addresses go; its disks stay as they are.</p>
          </ByName>
        </>
      )}
    </section>
  );
}

/** Adds a machine by a form, or one that asked for an address. */
export function AddMachine({ store, mac }: { store: Store; mac: string }) {
  const seen = mac ? store.seen.find((s) => s.mac === mac) : undefined;
  return (
    <section class="panel" aria-labelledby="panel-name" data-add={mac || "machine"}>
      <div class="panel-head">
        <h2 id="panel-name">{mac ? `Add ${mac}` : "Add a machine"}</h2>
      </div>
      {mac ? <Accept key={mac} mac={mac} seen={seen} /> : <MachineForm name="" />}
      {!mac && (
        <p class="quiet">
          Many at once: <a href={pathTo("new", "file")}>add them from a file</a>.
        </p>
      )}
    </section>
  );
}

const nicFields = ["address", "netmask", "gateway"];

/** Makes a machine of an unknown one; what its agent has reported is added by the server. */
function Accept({ mac, seen }: { mac: string; seen?: Seen }) {
  const requests = useRequests();
  const [texts, setTexts] = useState<Record<string, string>>({});
  const problems = problemsOf(requests, ["name", ...nicFields.map((f) => `interfaces[0].${f}`)]);
  const form: Form = { texts, problems, change: (f, text) => setTexts((t) => ({ ...t, [f]: text })) };
  const facts = seen?.facts;
  const given = Object.fromEntries(Object.entries(texts).map(([f, v]) => [f.replace("interfaces[0].", ""), v.trim()]).filter(([, v]) => v));
  return (
    <form
      class="form"
      data-accept={mac}
      onSubmit={(e) => {
        e.preventDefault();
        requests.run("accept", async () => {
          await api.accept(mac, given);
          go(pathTo("machines", String(given.name), "edit"));
        });
      }}
    >
      {facts && (
        <p class="text" data-facts>
          {[[facts.manufacturer, facts.product].filter(Boolean).join(" "), facts.serial && `serial ${facts.serial}`, ...(facts.disks ?? []).map((d) => `${bytes(d.size)} ${d.model ?? "disk"}`)].filter(Boolean).join(" · ")}
        </p>
      )}
      <fieldset>
        <legend>Machine</legend>
        <Field form={form} name="name" label="Name" required note="lower-case letters, digits and -" />
        <Field form={form} name="interfaces[0].address" label="IP address" note="reserved for it" />
        <Field form={form} name="interfaces[0].netmask" label="Netmask" />
        <Field form={form} name="interfaces[0].gateway" label="Gateway" />
      </fieldset>
      <div class="buttons">
        <button class="primary" data-choice="accept" disabled={requests.busy !== ""}>
          Add
        </button>
        <span class="quiet">then opens it for the rest</span>
      </div>
      <FormNote requests={requests} problems={problems} />
    </form>
  );
}
