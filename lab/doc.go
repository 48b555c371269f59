// Package lab is a virtual bare-metal data centre on one Linux machine: a switch with three VLANs, a server's place, a router
// with a DHCP relay, machines that are QEMU processes with real firmware (SeaBIOS with iPXE, OVMF), and a BMC for each of them
// that is switched over IPMI. The end-to-end tests and `make demo` run Ingot in it, unmodified.
//
//	host namespace          Forward: 127.0.0.1:port ─┐
//	┌────────────┐  ┌────────────────────┐           ▼
//	│ cli        │  │ rtr                │   ┌────────────────┐   ┌──────────────────┐
//	│ eth0       │  │ eth20 10.10.20.1   │   │ srv            │   │ bmc              │
//	│ (no addr.) │  │ eth30 10.10.30.1   │   │ eth0 10.10.20.2│   │ eth0 10.10.10.10 │
//	└──┬─────────┘  │ dhcrelay, routing  │   │ eth10 …10.2    │   │ ipmi_sim × n     │
//	   │            └──┬──────────┬──────┘   └──┬─────────┬───┘   └──┬───────────────┘
//	┌──┴───────────────┴──────────┴─────────────┴─────────┴──────────┴───┐
//	│ sw   br20 (VLAN 20: direct)  br30 (VLAN 30: relayed)  br10 (BMCs)   │  one tap per machine
//	└────────────────────────────────────────────────────────────────────┘
//
// Several labs run side by side: each takes a name under a lock, and everything of it lives in namespaces of that name. Close
// removes it all. Processes of a lab die with the program that made it, even when that is killed with -9; the namespaces that
// are left then are removed by the next New.
//
// What may break is broken on purpose, and each fault returns its Undo, which Close calls at the latest: processes are killed and
// frozen (KillRole, Freeze), a process loses its way to a port (Sever), links are cut, slowed down and made to lose frames (Cut,
// Delay, Lose, SlowServer), transfers stall and break off (Stall, ResetTransfers), disks fill up (SmallDisk, Fill), a database is
// locked (LockDatabase), a BMC cannot be reached, is slow, idle, broken, lies or refuses (the methods of BMC), power goes
// (Machine.PowerOff). Faults come when something was seen, never after some time.
//
// A machine with Spec.Trunk is at a switch with VLAN tags (IEEE 802.1Q) and, if requested, LACP: Open vSwitch in user space, with an
// uplink to the bridge of the machine's VLAN and one to VLAN 40, which exists on trunks only.
//
// Where many boots matter more than real firmware, a machine may be Simulated: from a namespace of its own, this program does
// there what firmware, iPXE and the installed system do on the wire, and the real agent runs as a process on the disk's file. A
// boot takes a fraction of a second; Spec.Stage holds it at any step, and Machine.Writers counts who wrote to the disk at once.
//
// What other installers install has its stand-ins: VyOSImage, TalosFiles and HarvesterFiles give images that boot real firmware,
// obey the kernel arguments and documents of VyOS, Talos and Harvester, lay out disks as they do and answer on their ports (see
// guestos). A simulated machine runs the same program as a process (Spec.Guest).
//
// Other machines are emulated (QEMU's TCG), never virtualised: a /dev/kvm that can be opened may be nested and hang a stock kernel,
// and a lab that behaves the same everywhere is worth more than a fast one.
package lab
