import { api } from "./api";
import { Many } from "./many";
import type { MachineView } from "./types";

const runOf = (m: MachineView) => m.workflow!.run;

/** Reports many machines as switched on, where power is by hand. */
export function PowerOn({ machines }: { machines: MachineView[] }) {
  return (
    <Many
      id="powered-on"
      machines={machines}
      keyOf={runOf}
      legend="Which of them are on?"
      acts={(count) => [{ choice: "powered-on-many", kind: "primary", label: `${count} are switched on`, note: "Their runs go on.", send: (m) => api.poweredOn(runOf(m)) }]}
    >
      <b>{machines.length} machines</b> have to be switched on by hand
    </Many>
  );
}
