// Command guestos is what runs inside the lab's stand-in guests: PID 1 of machines that play VyOS, Talos or Harvester. No code
// of those is in it; it has their outer form: it reads their kernel command lines and configuration files, lays out disks as
// they do, calls where they call and answers on their ports by their documented protocols. What it cannot do (routing daemons,
// containers, virtual machines) it does not pretend to do.
//
//	/product                     in the initramfs says who it plays: talos, harvester or vyos
//	LAB-TALOS, LAB-HARVESTER, …  begin its lines on the serial console
//	http://ADDRESS:8099/         what it is doing, as JSON; POST /fail?what=WORDS makes it fail (see failures)
//	ingotlab.fail=WORD,WORD      on the kernel command line does the same and is kept on the disk
//
// With -product it is an ordinary process that plays a simulated machine's system in the network namespace it was started in,
// on disks that are files. Reboot and power-off then are its last line and its end.
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

// players are the systems it can be. Each ends only with an error.
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

// asInit is PID 1. It does not return.
func asInit() {
	h := &host{real: true, out: os.Stdout}
	err := h.bringUp()
	if err == nil {
		err = h.play(context.Background())
	}
	h.fail(err)
}

// asProcess is a simulated machine's system.
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
	h.words = strings.Fields(*cmdline)
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

// fail says what went wrong and lets the machine stand, as a person would find it.
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
