// Package action is the contract between a template, the workflow that runs it, and the agent that
// carries out its actions on the machine.
//
// It imports only the standard library, because the agent links no other part of the server.
package action

import (
	"fmt"
	"strings"
	"time"
)

// Protocol is the version of the protocol between agent and server. Each side refuses any other
// version. Both ignore unknown fields, so fields can be added without a new version.
const Protocol = 2

// VendorClass is the vendor class (DHCP option 60) of the agent's operating system.
const VendorClass = "ingot-agent"

// An Action is one rendered step of a template for the agent.
type Action struct {
	Name        string      `json:"name"`
	Task        string      `json:"task,omitempty"`
	Image       string      `json:"image"` // as written in the template; see Native
	Command     []string    `json:"command,omitempty"`
	Environment Environment `json:"environment,omitempty"` // may contain secrets: never logged
	Volumes     []string    `json:"volumes,omitempty"`
	PID         string      `json:"pid,omitempty"`
	Timeout     Seconds     `json:"timeout"`             // > 0
	OnTimeout   []string    `json:"onTimeout,omitempty"` // see ParseHandler
	OnFailure   []string    `json:"onFailure,omitempty"` // see ParseHandler
}

// Seconds is a duration that is encoded in JSON as a number of seconds.
type Seconds int64

// Duration returns s as a time.Duration.
func (s Seconds) Duration() time.Duration { return time.Duration(s) * time.Second }

// A Key identifies one attempt at one action of one grant. Every message about an action contains
// it; a message with another key is dropped.
type Key struct {
	Epoch   int64 `json:"epoch"`
	Action  int   `json:"action"`  // index in the plan, from 0
	Attempt int   `json:"attempt"` // from 1
}

func (k Key) String() string { return fmt.Sprintf("%d.%d.%d", k.Epoch, k.Action, k.Attempt) }

// Disk is a disk that the agent has found, with the fields that identify it.
type Disk struct {
	Path       string   `json:"path"` // /dev/sda; does not identify the disk
	Serial     string   `json:"serial,omitempty"`
	WWN        string   `json:"wwn,omitempty"`
	Model      string   `json:"model,omitempty"`
	ByID       []string `json:"byID,omitempty"`       // names under /dev/disk/by-id, as udev makes them
	Size       int64    `json:"size"`                 // bytes
	SectorSize int      `json:"sectorSize,omitempty"` // logical, bytes; 0 = not known
	Rotational bool     `json:"rotational,omitempty"`
	Removable  bool     `json:"removable,omitempty"`
	ReadOnly   bool     `json:"readOnly,omitempty"`
	Transport  string   `json:"transport,omitempty"` // nvme, sata, usb, virtio …
	Firmware   string   `json:"firmware,omitempty"`  // its revision
	Signatures []string `json:"signatures,omitempty"`
	Written    string   `json:"written,omitempty"` // last run that wrote it; set by the server from its records
	Blank      bool     `json:"blank,omitempty"`   // no signature, and both ends are zero
}

// DiskID identifies a disk independently of its connector.
type DiskID struct {
	Serial string `json:"serial,omitempty"` // serial number
	WWN    string `json:"wwn,omitempty"`    // World Wide Name
}

// Is reports whether i identifies d: a matching serial number or a matching WWN is enough.
func (i DiskID) Is(d Disk) bool {
	return i.Serial != "" && i.Serial == d.Serial || i.WWN != "" && strings.EqualFold(i.WWN, d.WWN)
}

// NIC is a network interface that the agent has found.
type NIC struct {
	Name  string `json:"name"`
	MAC   string `json:"mac"`
	Speed int    `json:"speed,omitempty"` // Mbit/s
	Up    bool   `json:"up,omitempty"`
	// Firmware is the version of its firmware, as its driver writes it.
	Firmware string `json:"firmware,omitempty"`
	// Neighbour is the switch port that the interface is connected to, if LLDP has found it.
	Neighbour *Neighbour `json:"neighbour,omitempty"`
}

// Neighbour is the sender of an LLDP frame (IEEE 802.1AB).
type Neighbour struct {
	System      string `json:"system,omitempty"` // name
	Chassis     string `json:"chassis"`
	Port        string `json:"port"`
	Description string `json:"description,omitempty"` // of the port
}

// Facts describes the machine on which the agent runs.
type Facts struct {
	Manufacturer string `json:"manufacturer,omitempty"`
	Product      string `json:"product,omitempty"`
	Serial       string `json:"serial,omitempty"` // SMBIOS type 1
	UUID         string `json:"uuid,omitempty"`
	Firmware     string `json:"firmware,omitempty"` // bios | uefi
	Arch         string `json:"arch,omitempty"`
	CPUs         int    `json:"cpus,omitempty"`
	CPU          string `json:"cpu,omitempty"`    // model
	BIOS         string `json:"bios,omitempty"`   // vendor, version and date of the firmware (SMBIOS type 0)
	Memory       int64  `json:"memory,omitempty"` // bytes
	Disks        []Disk `json:"disks,omitempty"`
	NICs         []NIC  `json:"nics,omitempty"`
	// BMC is the management controller as seen from the machine; nil = none is known.
	BMC *InsideBMC `json:"bmc,omitempty"`
	// Truncated lists what was left out to keep a hello small; "" if nothing was. DisksOmitted
	// counts the disks that are missing from Disks.
	Truncated    string `json:"truncated,omitempty"`
	DisksOmitted int    `json:"disksOmitted,omitempty"`
}

// InsideBMC is a machine's management controller, as its firmware and the controller itself describe it
// from the inside.
type InsideBMC struct {
	IPMI     string `json:"ipmi,omitempty"`     // version; "" = it speaks no IPMI
	Maker    int    `json:"maker,omitempty"`    // IANA enterprise number: 674 is Dell; 0 = not known
	Firmware string `json:"firmware,omitempty"` // its revision
	// Redfish is host:port of the host interface (DSP0270), which this machine alone reaches; "" = none.
	Redfish string `json:"redfish,omitempty"`
	Address string `json:"address,omitempty"` // IPv4 address on the management network
	MAC     string `json:"mac,omitempty"`
}

// MaxHello is the size limit for the JSON of a Hello, in bytes. It is small because the sender is
// not authenticated yet.
const MaxHello = 64 << 10

// Hello is the agent's first message: it redeems the claim of its boot. POST /agent/v1/claim.
type Hello struct {
	Protocol int    `json:"protocol"`
	Machine  string `json:"machine"` // as in the boot script
	Claim    string `json:"claim"`   // from the boot script
	Nonce    string `json:"nonce"`   // generated by the agent once per boot, ≥ 128 bit hex
	MAC      string `json:"mac"`
	Facts    Facts  `json:"facts"`
}

// Discovery is what the agent of an unknown machine reports. POST /agent/v1/discover.
type Discovery struct {
	Protocol int    `json:"protocol"`
	MAC      string `json:"mac"` // of the interface that booted
	Facts    Facts  `json:"facts"`
}

// Discovered answers Discovery.
type Discovered struct {
	Known   bool    `json:"known"`             // the machine is in the inventory now, and reboots
	Machine string  `json:"machine,omitempty"` // its name there
	Again   Seconds `json:"again"`             // until the next report
}

// Welcome answers Hello. The same claim and nonce get the same answer until the token is first
// used.
type Welcome struct {
	Protocol  int       `json:"protocol"` // the agent refuses any version but its own
	Token     string    `json:"token"`    // bearer token for all further requests
	Run       string    `json:"run"`
	Epoch     int64     `json:"epoch"`
	Boot      int       `json:"boot"`
	Heartbeat Seconds   `json:"heartbeat"` // interval of heartbeats
	Time      time.Time `json:"time"`      // the server's clock, to which the agent sets its own
}

// Assignment is an action to carry out now. GET /agent/v1/next?wait=30 returns it, or 204 if there
// is none yet.
type Assignment struct {
	Key    Key    `json:"key"`
	Run    string `json:"run"`
	Action Action `json:"action"`
	// Disk is the disk that bind selected; nil before bind and for inspection. Paths in the
	// environment that name DiskAlias or its partitions refer to this disk.
	Disk      *Disk  `json:"disk,omitempty"`
	DiskAlias string `json:"diskAlias,omitempty"`
	// Protected are disks that the agent must not write or wipe, whatever the action says.
	Protected []DiskID `json:"protected,omitempty"`
	// Leaving means that the action takes the machine away from the agent (reboot, kexec,
	// poweroff). The agent reports success before it leaves.
	Leaving bool `json:"leaving,omitempty"`
	// Signed contains the fields above with the server's signature. The agent carries out only what
	// is in Signed.
	Signed *Signed `json:"signed,omitempty"`
}

// State is the state of an action attempt, with the values of Tinkerbell v0.25.
type State string

// The states of an action attempt.
const (
	Pending State = "PENDING"
	Running State = "RUNNING"
	Success State = "SUCCESS"
	Failed  State = "FAILED"
	Timeout State = "TIMEOUT"
	Stopped State = "STOPPED" // ended by an order to stop; its descriptors are closed
)

// Result is the agent's report on one attempt. POST /agent/v1/report. The agent sends it again
// until the server acknowledges it with 204. 410 means that the run has ended.
type Result struct {
	Key      Key       `json:"key"`
	ID       string    `json:"id"` // id of the report, unique, generated by the agent
	State    State     `json:"state"`
	ExitCode int       `json:"exitCode,omitempty"`
	Message  string    `json:"message,omitempty"` // the original error text
	Log      string    `json:"log,omitempty"`     // tail, ≤ 16 KiB
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended"`
	// Output has the values that the action reports, by name: sha256, bytes, blank …
	Output map[string]string `json:"output,omitempty"`
}

// Progress is the progress of a running attempt.
type Progress struct {
	Key     Key    `json:"key"`
	Done    int64  `json:"done"`            // bytes written
	Total   int64  `json:"total,omitempty"` // bytes, 0 = unknown
	Message string `json:"message,omitempty"`
	Log     string `json:"log,omitempty"` // new lines since the last heartbeat
}

// Heartbeat is sent every Welcome.Heartbeat, even if the agent is idle. POST /agent/v1/heartbeat.
type Heartbeat struct {
	Running *Progress `json:"running,omitempty"`
	// Idle means that the agent polls and runs no action. The heartbeat then has the keys of its
	// finished actions, so that the server notices a lost assignment.
	Idle  bool `json:"idle,omitempty"`
	Wrote bool `json:"wrote,omitempty"` // this boot has written to a disk
}

// Orders is the answer to Heartbeat.
type Orders struct {
	Stop []Key `json:"stop,omitempty"` // stop these attempts and report Stopped
	Hold bool  `json:"hold,omitempty"` // carry out nothing and keep asking
}

// Farewell is the body of 410, which answers all requests after the end of the run. The agent stops
// the running action. It reboots if this boot wrote nothing, and otherwise powers off.
type Farewell struct {
	Reason string `json:"reason"`
}
