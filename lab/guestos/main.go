// Command guestos is PID 1 of the lab's stand-ins for VyOS, Talos and Harvester. It contains none of their code. It behaves like
// them on the outside: it reads their kernel command lines and configuration files, partitions disks as they do, calls the same
// URLs and serves their documented protocols. It has no routing daemons, containers or virtual machines, and does not claim to.
//
//	/product                     in the initramfs names the product: talos, harvester or vyos
//	LAB-TALOS, LAB-HARVESTER, …  prefix of its lines on the serial console
//	http://ADDRESS:8099/         its state as JSON; POST /fail?what=STEP,… requests failures
//	ingotlab.fail=STEP,STEP      on the kernel command line does the same; it is stored on the disk
//
// With -product it runs as an ordinary process for a simulated machine, in the network namespace in which it was started, with
// files as disks. Reboot and power-off then print a line and end the process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// players are the products. Each returns only on error.
var players = map[string]func(ctx context.Context, h *host) error{
	"talos":     talosMain,
	"harvester": harvesterMain,
	"vyos":      vyosMain,
}

func main() {
	switch filepath.Base(os.Args[0]) {
	case "curl":
		os.Exit(curl(os.Args[1:], os.Stdout, os.Stderr))
	}
	if os.Getpid() == 1 {
		asInit()
	}
	os.Exit(asProcess(os.Args[1:]))
}

// asInit runs as PID 1. It does not return.
func asInit() {
	h := &host{real: true, out: os.Stdout}
	err := h.bringUp()
	if err == nil {
		err = h.play(context.Background())
	}
	h.fail(err)
}

// asProcess runs as the system of a simulated machine.
func asProcess(args []string) int {
	h := &host{out: os.Stdout}
	flags := flag.NewFlagSet("guestos", flag.ContinueOnError)
	flags.StringVar(&h.product, "product", "", "talos, harvester or vyos")
	cmdline := flags.String("cmdline", "", "the kernel command line")
	flags.StringVar(&h.serial, "serial", "", "the machine's serial number")
	flags.StringVar(&h.uuid, "uuid", "", "the machine's UUID")
	flags.StringVar(&h.root, "root", "", "vyos: the folder that plays the root file system")
	flags.StringVar(&h.relay, "dhcrelay", "", "vyos: the DHCP relay, if it is elsewhere")
	flags.Func("disk", "NAME=FILE,serial=SERIAL: a disk; may be given again", func(s string) error {
		d, err := parseDisk(s)
		h.disks = append(h.disks, d)
		return err
	})
	if err := flags.Parse(args); err != nil {
		return 2
	}
	h.parameters = strings.Fields(*cmdline)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	if err := h.play(ctx); err != nil {
		h.fail(err)
	}
	return 1
}

// play runs the product until it ends.
func (h *host) play(ctx context.Context) error {
	player := players[h.product]
	if player == nil {
		return fmt.Errorf("there is no product %q", h.product)
	}
	h.health.Product, h.health.Serial = h.product, h.serial
	h.serveHealth(ctx)
	return player(ctx, h)
}

// fail reports err and leaves the machine running, for the operator to see.
func (h *host) fail(err error) {
	if err == nil {
		err = errors.New("it ended")
	}
	h.say("FAILED %v", err)
	h.stage("failed", err.Error())
	for {
		time.Sleep(time.Hour)
	}
}
