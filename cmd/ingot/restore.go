package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/archive"
	"github.com/ingotmetal/ingot/internal/config"
)

func restoreCmd(o *options) *cobra.Command {
	var yes bool
	var k keyFlags
	c := &cobra.Command{
		Use: "restore FILE", Short: "Make a server of a backup, in an empty data directory", Args: cobra.ExactArgs(1),
		Long: `Make a server of a backup, in an empty data directory of this host (images may
lie in it) while no ingot serve runs here. The backup is proven first; one that
is damaged, mixed of two, of a newer release, or was changed by someone without
the keys is refused, and whenever this refuses, nothing was changed.

The keys prove who made the backup: those that the passphrase opens, or the key
file of that server, if it lies on this host already. Without either, the
restore needs --without-key, and believes whatever is in the file.

Nothing of before the backup goes on by itself: no machine is armed, agents of
before are told to hold, and every run that was under way is held and asks a
person, who can only abort it. Make sure that the server of which this is the
backup is off: two would answer the same machines.

` + aboutKeys,
		Example: "  ingot restore /backup/ingot.tar\n  ingot restore /backup/ingot.tar --yes --passphrase-file /etc/ingot/passphrase && ingot serve",
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config.Load(o.config, cmd.Flags().Changed("config"))
			if err != nil {
				return err
			}
			r := archive.Restore{Config: cfg, File: args[0]}
			m, err := r.Look(cmd.Context())
			if err != nil {
				return err
			}
			if err := confirm(cmd, yes, fmt.Sprintf("makes %s the server of the backup of %s, made on %s; that one must be off", cfg.DataDir, when(m.Created), inert(m.Host)), "restore"); err != nil {
				return err
			}
			r.WithoutKey = k.without
			if m.Key != nil && !k.without {
				if r.Passphrase, err = k.passphrase(cmd, false); err != nil {
					return err
				}
			}
			done, err := r.Do(cmd.Context())
			if err != nil {
				return fmt.Errorf("%w; nothing was changed", err)
			}
			return showValue(cmd, o, done, func(w io.Writer) error { return printRestored(w, done) })
		},
	}
	k.flags(c)
	yesFlag(c, &yes)
	return c
}

func printRestored(w io.Writer, r archive.Restored) error {
	fmt.Fprintf(w, "restored backup %s of %s into %s\n", inert(r.Backup), when(r.Taken), r.DataDir)
	for _, h := range r.Held {
		fmt.Fprintf(w, "held: run %s of %s was under way; look at the machine, then: ingot workflow decide %s --choice abort\n", inert(h.Run), inert(h.Machine), inert(h.Machine))
	}
	for _, x := range r.Lost {
		fmt.Fprintf(w, "cannot be read: %s\n", inert(x))
	}
	for _, x := range r.Missing {
		fmt.Fprintf(w, "image without its file: %s\n", inert(x))
	}
	next := "ingot doctor && ingot serve"
	if len(r.Lost) > 0 {
		next = "put the key file of that server back, or: ingot secret reset; then " + next
	}
	_, err := fmt.Fprintf(w, "next: %s\n", next)
	return err
}
