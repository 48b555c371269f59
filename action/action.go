// Package action is the contract between a template, the workflow that runs
// it, and the agent that carries it out on the machine.
//
// It imports the standard library only: the agent links nothing else of the
// server.
package action

import (
	"fmt"
	"strings"
	"time"
)

// Protocol is the version of the protocol between agent and server. Each speaks
// this version only, and refuses any other. Both ignore fields that they do not
// know, so that fields can be added without another version.
const Protocol = 2

// An Action is one step carried out on the machine, rendered and ready.
type Action struct {
	Name        string            `json:"name"`
	Task        string            `json:"task,omitempty"`
	Image       string            `json:"image"` // as the template names it; see Native
	Command     []string          `json:"command,omitempty"`
	Environment map[string]string `json:"environment,omitempty"` // may hold secrets: never logged
	Volumes     []string          `json:"volumes,omitempty"`
	PID         string            `json:"pid,omitempty"`
	Timeout     Seconds           `json:"timeout"` // > 0
	OnTimeout   []string          `json:"onTimeout,omitempty"`
	OnFailure   []string          `json:"onFailure,omitempty"`
}

// Seconds is a duration that travels as a JSON number of seconds.
type Seconds int64

// Duration returns s as a time.Duration.
func (s Seconds) Duration() time.Duration { return time.Duration(s) * time.Second }

// A Key names one attempt at one action of one grant. Whatever speaks of an
// action carries it, and what does not match is dropped.
type Key struct {
	Epoch   int64 `json:"epoch"`
	Action  int   `json:"action"`  // index in the plan, from 0
	Attempt int   `json:"attempt"` // from 1
}

func (k Key) String() string { return fmt.Sprintf("%d.%d.%d", k.Epoch, k.Action, k.Attempt) }

// Disk is a disk that the agent sees, with what identifies it.
type Disk struct {
	Path       string   `json:"path"` // /dev/sda; no identity
	Serial     string   `json:"serial,omitempty"`
	WWN        string   `json:"wwn,omitempty"`
	Model      string   `json:"model,omitempty"`
	ByID       []string `json:"byID,omitempty"` // names under /dev/disk/by-id, as udev would make them
	Size       int64    `json:"size"`           // bytes
	Rotational bool     `json:"rotational,omitempty"`
	Removable  bool     `json:"removable,omitempty"`
	ReadOnly   bool     `json:"readOnly,omitempty"`
	Transport  string   `json:"transport,omitempty"` // nvme, sata, usb, virtio …
	Signatures []string `json:"signatures,omitempty"`
	Written    string   `json:"written,omitempty"` // run that wrote it last, filled in by the server from its records
	Blank      bool     `json:"blank,omitempty"`   // no signature, both ends zero
}

// DiskID names a disk by what stays the same wherever it is plugged in.
type DiskID struct {
	Serial string `json:"serial,omitempty"`
	WWN    string `json:"wwn,omitempty"`
}

// Is reports whether d is the disk: one of the two is enough.
func (i DiskID) Is(d Disk) bool {
	return i.Serial != "" && i.Serial == d.Serial || i.WWN != "" && strings.EqualFold(i.WWN, d.WWN)
}

// NIC is a network interface that the agent sees.
type NIC struct {
	Name  string `json:"name"`
	MAC   string `json:"mac"`
	Speed int    `json:"speed,omitempty"` // Mbit/s
	Up    bool   `json:"up,omitempty"`
}

// Facts is what the agent found on the machine.
type Facts struct {
	Manufacturer string `json:"manufacturer,omitempty"`
	Product      string `json:"product,omitempty"`
	Serial       string `json:"serial,omitempty"` // SMBIOS type 1
	UUID         string `json:"uuid,omitempty"`
	Firmware     string `json:"firmware,omitempty"` // bios | uefi
	Arch         string `json:"arch,omitempty"`
	CPUs         int    `json:"cpus,omitempty"`
	Memory       int64  `json:"memory,omitempty"` // bytes
	Disks        []Disk `json:"disks,omitempty"`
	NICs         []NIC  `json:"nics,omitempty"`
	// Truncated says what was left out, because a hello has to stay small; ""
	// when nothing was. DisksOmitted counts disks that are not in Disks.
	Truncated    string `json:"truncated,omitempty"`
	DisksOmitted int    `json:"disksOmitted,omitempty"`
}

// MaxHello is how long the JSON of a Hello may be, in bytes. Its sender has proven
// nothing yet.
const MaxHello = 64 << 10

// Hello is what the agent says first: it redeems its boot's claim.
// POST /agent/v1/claim.
type Hello struct {
	Protocol int    `json:"protocol"`
	Machine  string `json:"machine"` // as the boot script names it
	Claim    string `json:"claim"`   // from the boot script
	Nonce    string `json:"nonce"`   // the agent's own, made once per boot, ≥ 128 bit hex
	MAC      string `json:"mac"`
	Facts    Facts  `json:"facts"`
}

// Welcome answers Hello. The same (claim, nonce) gets the same answer until
// its token was first used.
type Welcome struct {
	Protocol  int       `json:"protocol"` // an agent refuses another than its own
	Token     string    `json:"token"`    // bearer token of all further requests
	Run       string    `json:"run"`
	Epoch     int64     `json:"epoch"`
	Boot      int       `json:"boot"`
	Heartbeat Seconds   `json:"heartbeat"` // how often to call
	Time      time.Time `json:"time"`      // the server's clock: the agent sets its own
}

// Assignment is an action to carry out now. GET /agent/v1/next?wait=30 answers
// it, or 204 when there is none yet.
type Assignment struct {
	Key    Key    `json:"key"`
	Run    string `json:"run"`
	Action Action `json:"action"`
	// Disk is the disk that bind chose; nil before bind and for inspection.
	// Paths in the environment that name DiskAlias or its partitions mean it.
	Disk      *Disk  `json:"disk,omitempty"`
	DiskAlias string `json:"diskAlias,omitempty"`
	// Protected are disks that the agent must neither write nor wipe, whatever
	// the action says.
	Protected []DiskID `json:"protected,omitempty"`
	// Leaving: the action takes the machine away from the agent (reboot,
	// kexec, poweroff). The agent reports success before it leaves.
	Leaving bool `json:"leaving,omitempty"`
	// Signed holds all of the above as the server signed it. The agent carries out
	// Signed alone.
	Signed *Signed `json:"signed,omitempty"`
}

// State of an action attempt, in the words of Tinkerbell v0.25.
type State string

// The states of an action attempt.
const (
	Pending State = "PENDING"
	Running State = "RUNNING"
	Success State = "SUCCESS"
	Failed  State = "FAILED"
	Timeout State = "TIMEOUT"
	Stopped State = "STOPPED" // ended on order; its descriptors are closed
)

// Result is the agent's report on one attempt. POST /agent/v1/report; sent
// again until acknowledged with 204. 410 means that the run is over.
type Result struct {
	Key      Key       `json:"key"`
	ID       string    `json:"id"` // report id, the agent's own, unique
	State    State     `json:"state"`
	ExitCode int       `json:"exitCode,omitempty"`
	Message  string    `json:"message,omitempty"` // the real error text
	Log      string    `json:"log,omitempty"`     // tail, ≤ 16 KiB
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended"`
	// Output is what an action measured, by name: sha256, bytes, blank …
	Output map[string]string `json:"output,omitempty"`
}

// Progress is where a running attempt stands.
type Progress struct {
	Key     Key    `json:"key"`
	Done    int64  `json:"done"`            // bytes written
	Total   int64  `json:"total,omitempty"` // bytes, 0 = unknown
	Message string `json:"message,omitempty"`
	Log     string `json:"log,omitempty"` // new lines since the last heartbeat
}

// Heartbeat is sent every Welcome.Heartbeat, with or without work.
// POST /agent/v1/heartbeat.
type Heartbeat struct {
	Running *Progress `json:"running,omitempty"`
	// Idle: polls and has nothing to do; with the keys that it has finished,
	// so that the server sees a lost assignment.
	Idle  bool `json:"idle,omitempty"`
	Wrote bool `json:"wrote,omitempty"` // this boot has written to a disk
}

// Orders answers Heartbeat.
type Orders struct {
	Stop []Key `json:"stop,omitempty"` // end these attempts, report Stopped
	Hold bool  `json:"hold,omitempty"` // do nothing, keep asking
}

// Farewell answers requests of an agent whose run is over, with status 410.
// The agent stops what runs; then it reboots if this boot wrote nothing,
// otherwise powers off.
type Farewell struct {
	Reason string `json:"reason"`
}
