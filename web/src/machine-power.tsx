import { useState } from "preact/hooks";
import { api, Refused } from "./api";
import { ByName, Field } from "./form";
import { manual } from "./phases";
import { RefusedNote, useRequests } from "./request";
import { at } from "./text";
import type { MachineView } from "./types";

const devices: [string, string][] = [
  ["pxe", "the network"],
  ["http", "the network, by UEFI HTTP"],
  ["disk", "the disk"],
  ["cdrom", "the CD drive"],
  ["bios", "the set-up of the firmware"],
  ["none", "as the firmware is set"],
];

/** The acts that take a running system down. */
const hard: [string, string][] = [
  ["soft", "Shut down"],
  ["off", "Switch off"],
  ["cycle", "Off and on again"],
  ["reset", "Reset"],
];

/** How often a job is looked at, ms, and how many times. */
const look = 1000;
const looks = 120;

/** Switches a machine that has a BMC, and sets what it boots next; each is a job, whose end is shown. */
export function Power({ machine: m }: { machine: MachineView }) {
  const requests = useRequests();
  const [result, setResult] = useState("");
  const carryOut = async (start: Promise<string>) => {
    setResult("");
    const job = await start;
    for (let i = 0; i < looks; i++) {
      const j = await api.bmcJob(m.name, job);
      if (at(j.ended) > 0) {
        if (j.state !== "SUCCESS") throw new Refused(0, j.message || j.state);
        setResult(j.message || "Done.");
        return;
      }
      setResult("Under way…");
      await new Promise((r) => setTimeout(r, look));
    }
  };
  const [texts, setTexts] = useState<Record<string, string>>({ device: "pxe", action: "soft" });
  const check = async () => {
    setResult("");
    const b = await api.checkBMC(m.name);
    if (!b.ok) throw new Refused(0, b.message || "The BMC does not answer.");
    setResult([b.power && `power ${b.power}`, b.boot && `boots from ${b.boot}`, b.maker, b.model, b.firmware && `firmware ${b.firmware}`].filter(Boolean).join(" · "));
  };
  if (manual(m)) return null;
  const form = { texts, problems: new Map(), change: (f: string, text: string) => setTexts((t) => ({ ...t, [f]: text })) };
  const off = requests.busy !== "";
  return (
    <details class="service" data-power-of={m.name}>
      <summary>Power and boot device</summary>
      <div class="buttons">
        <button type="button" data-choice="power-on" disabled={off} onClick={() => requests.run("on", () => carryOut(api.power(m.name, "on")))}>
          Switch on
        </button>
        <button type="button" data-choice="check-bmc" disabled={off} onClick={() => requests.run("check", check)}>
          Ask the BMC
        </button>
      </div>
      <form
        class="form"
        onSubmit={(e) => {
          e.preventDefault();
          requests.run("boot", () => carryOut(api.bootDevice(m.name, texts.device!, { persistent: !!texts.persistent, efiBoot: !!texts.efi })));
        }}
      >
        <Field form={form} name="device" label="Boot next from" kind="choice" options={devices} />
        <Field form={form} name="persistent" label="At each boot" kind="check" />
        <Field form={form} name="efi" label="By UEFI" kind="check" />
        <div class="buttons">
          <button data-choice="boot-device" disabled={off}>
            Set it
          </button>
        </div>
      </form>
      {result && (
        <p role="status" class="text" data-result>
          {result}
        </p>
      )}
      <RefusedNote requests={requests} />
      <ByName name={m.name} label="Switch off or reset" sure={hard.find(([a]) => a === texts.action)![1]} choice="power" onDo={() => carryOut(api.power(m.name, texts.action!))}>
        <Field form={form} name="action" label="How" kind="choice" options={hard} />
        <p>What runs on {m.name} ends. Refused while a run of Ingot holds the machine.</p>
      </ByName>
    </details>
  );
}
