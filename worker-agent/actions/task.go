package actions

import (
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/container"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/efi"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"github.com/ingotmetal/ingot/worker-agent/facts"
	"github.com/ingotmetal/ingot/worker-agent/fetch"
)

// Machine is the part of the machine that actions may use.
type Machine struct {
	Name   string              // the machine's name in the inventory
	Finder facts.Finder        // nil = inspect fails
	Disks  disk.Disks          // required by every action that writes
	Files  filesys.Filesystems // nil = writefile and inject fail
	EFI    efi.Variables       // nil = the machine was booted by BIOS
	Kernel Kexecer             // nil = kexec reboots instead
	Server fetch.Server        // the Ingot server, which also serves images

	Containers *container.Runner // nil = no container runs
	RuntimeURL string            // where the server serves the container runtime

	Backoff time.Duration // longest pause before a failed request is repeated

	Wrote  func()            // called before the first byte is written to a disk
	Loaded func(loaded bool) // called by kexec; loaded reports whether a kernel was loaded
}

// Task is one attempt at an action.
type Task struct {
	*Report
	machine Machine
	order   action.Assignment
	env     map[string]string
	// command is the command in the template; see action.CheckCommand.
	command []string
	alias   string
	bound   *action.Disk
	spared  []action.DiskID // protected disks, which are never written
	output  map[string]string
}

// NewTask returns an attempt at the action of an assignment, which must come from a verified order.
func NewTask(m Machine, r *Report, as action.Assignment) *Task {
	return &Task{
		Report: r, machine: m, order: as, env: as.Action.Environment,
		alias: as.DiskAlias, bound: as.Disk, spared: as.Protected, output: map[string]string{},
	}
}

// opener opens files for this attempt.
func (t *Task) opener() fetch.Opener {
	return fetch.Opener{Server: t.machine.Server, Log: t.logf, Backoff: t.machine.Backoff}
}
