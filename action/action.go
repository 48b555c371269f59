// Package action defines what templates, workflows and agents share: actions with their variables, and the protocol between agent and
// server.
//
// It imports only the standard library, because it is the only part of the server in the agent's program.
package action

import (
	"fmt"
	"strings"
	"time"
)

// Protocol is the version of the protocol between agent and server. Agent and server each refuse any other version. Both ignore
// unknown fields, so fields can be added without a new version.
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
	Timeout     Seconds     `json:"timeout"`             // > 0
	OnTimeout   []string    `json:"onTimeout,omitempty"` // see ParseHandler
	OnFailure   []string    `json:"onFailure,omitempty"` // see ParseHandler
	Container   *Container  `json:"container,omitempty"` // set if the action is a container, nil if it is native
	// Second is the disk that the action uses in place of the run's disk; nil = the run's disk.
	Second *SecondDisk `json:"second,omitempty"`
}

// A SecondDisk is a disk that a machine declares in addition to the run's disk. The environment of an action calls it Device; only DiskID
// identifies it.
type SecondDisk struct {
	Device string `json:"device"`
	DiskID
}

// A Container is an image of the OCI image specification 1.1 that the agent runs as an action. The plan sets it: Action.Image is only the
// text in the template.
type Container struct {
	// URL is where the Ingot server serves the image's archive: a tar file with the layout of the OCI image specification, whose
	// files are in the order oci-layout, index.json, manifest, configuration, layers.
	URL    string `json:"url"`
	SHA256 string `json:"sha256"` // of the archive
	Digest string `json:"digest"` // of the image's manifest: sha256: and 64 hex digits
	Size   int64  `json:"size"`   // bytes of the unpacked layers
	// Disk: the container may read and write the disk that is bound to the run, and no other.
	Disk bool `json:"disk,omitempty"`
	// HostNetwork and HostPID: the container shares these namespaces with the agent.
	HostNetwork bool `json:"hostNetwork,omitempty"`
	HostPID     bool `json:"hostPID,omitempty"`
	// Privileged: the container may do what the agent may do. It still sees only the disk that is bound to the run.
	Privileged bool `json:"privileged,omitempty"`
	// Runtime is the SHA-256 of the archive with the container runtime, which the server sets when it assigns the action.
	Runtime string `json:"runtime,omitempty"`
}

// RuntimeFile is the name of the archive with the container runtime, next to the agent's kernel and initramfs. Agents fetch it from
// /agent/v1/runtime.
const RuntimeFile = "runtime.tar.zst"

// Seconds is a duration that is encoded in JSON as a number of seconds.
type Seconds int64

// Duration returns s as a time.Duration.
func (s Seconds) Duration() time.Duration { return time.Duration(s) * time.Second }

// A Key identifies one attempt at one action of a run. Every message about an attempt contains its Key. A message about an attempt
// that is not the current one is ignored.
type Key struct {
	Epoch   int64 `json:"epoch"`   // epoch of the run's grant
	Action  int   `json:"action"`  // index in the plan, from 0
	Attempt int   `json:"attempt"` // from 1
}

func (k Key) String() string { return fmt.Sprintf("%d.%d.%d", k.Epoch, k.Action, k.Attempt) }

// Disk is a disk that the agent has found, with the fields that identify it.
type Disk struct {
	Path       string   `json:"path"` // such as /dev/sda; after the next boot, this may be the path of another disk
	Serial     string   `json:"serial,omitempty"`
	WWN        string   `json:"wwn,omitempty"`
	Model      string   `json:"model,omitempty"`
	ByID       []string `json:"byID,omitempty"`       // names that udev makes under /dev/disk/by-id
	Size       int64    `json:"size"`                 // bytes
	SectorSize int      `json:"sectorSize,omitempty"` // size of the logical sectors, in bytes; 0 = not known
	Rotational bool     `json:"rotational,omitempty"`
	Removable  bool     `json:"removable,omitempty"`
	ReadOnly   bool     `json:"readOnly,omitempty"`
	Transport  string   `json:"transport,omitempty"` // nvme, sata, usb, virtio …
	Firmware   string   `json:"firmware,omitempty"`  // revision of the disk's firmware
	Signatures []string `json:"signatures,omitempty"`
	Written    string   `json:"written,omitempty"` // last run that wrote the disk; set by the server from its records
	Blank      bool     `json:"blank,omitempty"`   // no signature, and only zeros at the beginning and the end of the disk
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

// Keys returns the keys under which the inventory stores a disk: one for its serial number, one for its WWN.
func (i DiskID) Keys() (keys []string) {
	if i.Serial != "" {
		keys = append(keys, "serial:"+i.Serial)
	}
	if i.WWN != "" {
		keys = append(keys, "wwn:"+i.WWN)
	}
	return keys
}

// ID returns the serial number and the WWN of the disk.
func (d Disk) ID() DiskID { return DiskID{d.Serial, d.WWN} }

// NIC is a network interface that the agent has found.
type NIC struct {
	Name  string `json:"name"`
	MAC   string `json:"mac"`
	Speed int    `json:"speed,omitempty"` // Mbit/s
	Up    bool   `json:"up,omitempty"`
	// Firmware is the version of the interface's firmware, as its driver reports it.
	Firmware string `json:"firmware,omitempty"`
	// Neighbour is the switch port to which the interface is connected; nil = LLDP has found none.
	Neighbour *Neighbour `json:"neighbour,omitempty"`
}

// Neighbour is the sender of an LLDP frame (IEEE 802.1AB).
type Neighbour struct {
	System      string `json:"system,omitempty"` // name of the switch
	Chassis     string `json:"chassis"`
	Port        string `json:"port"`
	Description string `json:"description,omitempty"` // description of the port
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
	// BMC is the management controller as the machine itself sees it; nil = none was found.
	BMC *InsideBMC `json:"bmc,omitempty"`
	// Truncated describes what was left out to keep the Hello below MaxHello; "" if nothing was left out. DisksOmitted is how many
	// disks were left out of Disks.
	Truncated    string `json:"truncated,omitempty"`
	DisksOmitted int    `json:"disksOmitted,omitempty"`
}

// InsideBMC is what software on the machine can read about the machine's management controller, both from the firmware and from the
// controller itself.
type InsideBMC struct {
	IPMI     string `json:"ipmi,omitempty"`     // version of IPMI; "" = the controller does not support IPMI
	Maker    int    `json:"maker,omitempty"`    // IANA enterprise number: 674 is Dell; 0 = not known
	Firmware string `json:"firmware,omitempty"` // revision of the controller's firmware
	// Redfish is the host:port of the Redfish host interface (DSP0270), an internal network that only this machine can reach; "" =
	// there is none.
	Redfish string `json:"redfish,omitempty"`
	Address string `json:"address,omitempty"` // IPv4 address on the management network
	MAC     string `json:"mac,omitempty"`
}

// MaxHello is the maximum size of the JSON of a Hello, in bytes. It is small because the server has not authenticated the sender
// yet.
const MaxHello = 64 << 10

// Hello is the agent's first message, POST /agent/v1/claim. With it, the agent exchanges the claim (a secret for this one boot,
// from the boot script) for the token in Welcome.
type Hello struct {
	Protocol int    `json:"protocol"`
	Machine  string `json:"machine"` // as in the boot script
	Claim    string `json:"claim"`   // from the boot script
	Nonce    string `json:"nonce"`   // generated by the agent once per boot, ≥ 128 bit hex
	MAC      string `json:"mac"`
	Facts    Facts  `json:"facts"`
}

// Discovery is what an agent on an unknown machine reports: POST /agent/v1/discover.
type Discovery struct {
	Protocol int    `json:"protocol"`
	MAC      string `json:"mac"` // MAC of the interface that booted
	Facts    Facts  `json:"facts"`
}

// Discovered is the answer to Discovery.
type Discovered struct {
	Known   bool    `json:"known"`             // the machine is in the inventory now, so the agent reboots it
	Machine string  `json:"machine,omitempty"` // name of the machine in the inventory
	Again   Seconds `json:"again"`             // time until the agent must report again
}

// Welcome is the answer to Hello. An agent that repeats its Hello, with the same claim and nonce, before it has used the token gets
// the same answer again.
type Welcome struct {
	Protocol  int       `json:"protocol"` // the agent refuses any version other than its own
	Token     string    `json:"token"`    // bearer token for all further requests
	Run       string    `json:"run"`
	Epoch     int64     `json:"epoch"`
	Boot      int       `json:"boot"`
	Heartbeat Seconds   `json:"heartbeat"` // interval of heartbeats
	Time      time.Time `json:"time"`      // the server's clock, to which the agent sets its own
}

// Assignment is an action for the agent to carry out now. It is the answer to GET /agent/v1/next?wait=30. While there is no action,
// the answer is 204.
type Assignment struct {
	Key    Key    `json:"key"`
	Run    string `json:"run"`
	Action Action `json:"action"`
	// Disk is the disk that is bound to the run; nil before a disk is bound, and for inspection. In the environment, the path
	// DiskAlias means this disk, and the paths of partitions of DiskAlias mean its partitions.
	Disk      *Disk  `json:"disk,omitempty"`
	DiskAlias string `json:"diskAlias,omitempty"`
	// Protected lists the disks that the agent must not write or wipe, whatever the action says.
	Protected []DiskID `json:"protected,omitempty"`
	// Leaving means that the action ends the agent (reboot, kexec, poweroff). The agent then reports success before it carries out
	// the action.
	Leaving bool `json:"leaving,omitempty"`
	// Signed contains the fields above together with the server's signature. The agent carries out only what is in Signed.
	Signed *Signed `json:"signed,omitempty"`
}

// State is the state of an action attempt. The values are the same as in Tinkerbell v0.25.
type State string

// The states of an action attempt.
const (
	Pending State = "PENDING"
	Running State = "RUNNING"
	Success State = "SUCCESS"
	Failed  State = "FAILED"
	Timeout State = "TIMEOUT"
	Stopped State = "STOPPED" // ended by an order to stop; all its open files are closed
)

// Result is the agent's report on one attempt, POST /agent/v1/report. The agent repeats the report until the server acknowledges it
// with 204. The answer 410 means that the run has ended.
type Result struct {
	Key      Key       `json:"key"`
	ID       string    `json:"id"` // id of the report, unique, generated by the agent
	State    State     `json:"state"`
	ExitCode int       `json:"exitCode,omitempty"`
	Message  string    `json:"message,omitempty"` // the original error text
	Log      string    `json:"log,omitempty"`     // end of the log, at most 16 KiB
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended"`
	// Output holds the values that the action reports, by name: sha256, bytes, blank …
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

// Heartbeat is sent every Welcome.Heartbeat seconds, also by an idle agent: POST /agent/v1/heartbeat.
type Heartbeat struct {
	Running *Progress `json:"running,omitempty"`
	// Idle means that the agent carries out no action and asks for one. If the server has assigned an action already, this shows
	// that the assignment was lost on its way to the agent.
	Idle  bool `json:"idle,omitempty"`
	Wrote bool `json:"wrote,omitempty"` // this boot has written to a disk
}

// Orders is the answer to Heartbeat.
type Orders struct {
	Stop []Key `json:"stop,omitempty"` // stop these attempts and report Stopped
	Hold bool  `json:"hold,omitempty"` // carry out nothing, and continue to send heartbeats
}

// Farewell is the body of 410, which is the answer to every request of an agent whose run has ended. The agent then stops the
// running action. If this boot has written nothing, the agent reboots the machine; otherwise it switches the machine off.
type Farewell struct {
	Reason string `json:"reason"`
}
