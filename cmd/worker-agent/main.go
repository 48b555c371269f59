// Command worker-agent is the agent on the machine that Ingot installs.
//
// As PID 1 (the /init of the in-memory system that deploy/agentos builds), it sets up the machine,
// reads its parameters from the kernel command line (agent.CommandLine) and never exits.
//
// As an ordinary process, it simulates a machine with files as disks:
//
//	worker-agent -server https://127.0.0.1:7443 -pin sha256:… -machine m1 -claim … -plan ed25519:… \
//	    -disk /dev/sda=disk.img,serial=A1
//
// If the kernel starts it under the name modprobe, it loads a kernel module.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/container"
	"github.com/ingotmetal/ingot/worker-agent/disk"

	agent "github.com/ingotmetal/ingot/worker-agent"
)

func main() {
	switch {
	case filepath.Base(os.Args[0]) == "modprobe":
		os.Exit(modprobe(os.Args[1:]))
	case os.Args[0] == container.StartName && len(os.Args) == 2:
		fmt.Fprintln(os.Stderr, "starting the container:", container.Start(os.Args[1]))
		os.Exit(1)
	case os.Getpid() == 1:
		bootMachine()
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "worker-agent:", err)
		os.Exit(1)
	}
}

// run runs the agent as an ordinary process that simulates a machine.
func run(ctx context.Context, args []string) error {
	var cfg agent.Config
	sim := simulated{}
	flags := flag.NewFlagSet("worker-agent", flag.ContinueOnError)
	flags.StringVar(&cfg.Server, "server", "", "base `URL` of the server's agent listener")
	flags.StringVar(&cfg.Pin, "pin", "", "SHA-256 of the server certificate's SubjectPublicKeyInfo, as sha256:HEX")
	flags.StringVar(&cfg.Machine, "machine", "", "the machine's `name` in the inventory")
	flags.StringVar(&cfg.Claim, "claim", "", "claim of this boot, in hexadecimal")
	flags.StringVar(&cfg.PlanKey, "plan", "", "public `key` that checks the signatures of orders, as ed25519:BASE64URL")
	flags.StringVar(&cfg.MAC, "mac", "", "MAC address of the interface that booted")
	flags.BoolVar(&cfg.Rescue, "rescue", false, "boot for an operator: carry out no actions")
	flags.BoolVar(&cfg.Discover, "discover", false, "unknown machine: only report the hardware")
	flags.StringVar(&sim.serial, "serial", "", "SMBIOS serial number to report")
	flags.Func("disk", "simulated disk, as `PATH=FILE[,serial=S][,wwn=W]`; may be repeated", sim.addDisk)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("reading the command line: unexpected argument %q", flags.Arg(0))
	}

	cfg.Finder, cfg.Disks, cfg.Files = sim, sim.disks, sim
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	a, err := agent.New(cfg)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// simulated is a machine described by command-line flags.
type simulated struct {
	serial string
	disks  disk.FileDisks
}

func (s *simulated) addDisk(v string) error {
	path, rest, ok := strings.Cut(v, "=")
	words := strings.Split(rest, ",")
	if !ok || words[0] == "" {
		return fmt.Errorf("invalid disk %q; must be PATH=FILE", v)
	}

	d := disk.FileDisk{Disk: action.Disk{Path: path}, File: words[0]}
	for _, w := range words[1:] {
		switch name, value, _ := strings.Cut(w, "="); name {
		case "serial":
			d.Serial = value
		case "wwn":
			d.WWN = value
		default:
			return fmt.Errorf("invalid disk attribute %q; must be serial or wwn", name)
		}
	}

	s.disks = append(s.disks, d)
	return nil
}

// Facts implements agent.Finder.
func (s simulated) Facts(ctx context.Context) (action.Facts, error) {
	disks, err := s.disks.Facts(ctx)
	return action.Facts{
		Manufacturer: "Ingot", Product: "simulated", Serial: s.serial, Firmware: "bios", Arch: "x86_64",
		Disks: disks,
	}, err
}
