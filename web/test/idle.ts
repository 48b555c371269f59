// One graph of modules, so that a session's context reaches the panel.
export { MachinePanel } from "../src/panel";
export { Idle } from "../src/request";
