package host

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/text/human"
)

func restoreCommand(o *cli.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Restore a server from a backup into an empty data directory", Args: cobra.ExactArgs(1),
		Long: `Restore a server from a backup into this host's data directory, which must be empty
except for images. "ingot serve" must not run on this host. The backup is verified
first. It is refused if it is damaged, a mix of two backups, made by a newer release, or
changed by someone without the keys. A refused restore changes nothing.

The backup is verified with the keys that the passphrase decrypts, or with the key file
of the server that made the backup, if this host already has that file. Without either,
--without-key is required, and a backup that was changed deliberately is accepted.

No earlier run continues automatically: all netboot windows are closed, agents of
earlier runs are ordered to wait, and every run that was open asks the operator, who can
only abort it. With a Temporal cluster, runs that began after the backup are cancelled.
Switch off the server that made this backup: otherwise two servers answer the same
machines. Each named token is disabled until "ingot token enable NAME".

` + keysHelp,
		Example: "  ingot restore /backup/ingot.tar\n" +
			"  ingot restore /backup/ingot.tar --yes --passphrase-file /etc/ingot/passphrase && ingot serve",
	}

	var keys keyFlags
	keys.addFlags(cmd)
	yes := cli.YesFlag(cmd)

	return o.NewCommand(cmd, withConfig(func(c *cli.Call, cfg config.Config) error {
		r := backup.Restore{Config: cfg, File: c.Args[0], WithoutKey: keys.without}
		m, err := r.Look(c.Context())
		if err != nil {
			return err
		}

		what := fmt.Sprintf("restores into %s the backup that was made at %s on %s; switch that server off first",
			cfg.DataDir, human.Time(m.Created), cli.Inert(m.Host))
		if err := c.Confirm(*yes, what, "restore"); err != nil {
			return err
		}
		if m.Key != nil && !keys.without {
			if r.Passphrase, err = keys.passphrase(c, false); err != nil {
				return err
			}
		}

		done, err := r.Do(c.Context())
		if err != nil {
			return fmt.Errorf("%w; nothing was changed", err)
		}

		return cli.ShowValue(c, done, func(w io.Writer) error { return printRestored(w, done) })
	}))
}

func printRestored(w io.Writer, r backup.Restored) error {
	fmt.Fprintf(w, "restored backup %s of %s into %s\n", cli.Inert(r.Backup), human.Time(r.Taken), r.DataDir)
	for _, h := range r.Held {
		if h.Machine == "" {
			fmt.Fprintf(w, "held: %s was open; show it with: ingot operation get %[1]s\n", cli.Inert(h.Workflow))
			continue
		}
		machine := cli.Inert(h.Machine)
		fmt.Fprintf(w, "held: run %s of %s was open; check the machine, "+
			"then: ingot workflow decide %s --choice abort\n", cli.Inert(h.Run), machine, machine)
	}
	if r.AwaitsCluster {
		fmt.Fprintln(w, "held once the server reaches its Temporal cluster: every run that is open there")
	}

	for _, x := range r.Lost {
		fmt.Fprintf(w, "cannot be read: %s\n", cli.Inert(x))
	}

	for _, x := range r.Missing {
		fmt.Fprintf(w, "image without its file: %s\n", cli.Inert(x))
	}

	next := "ingot doctor && ingot serve"
	if len(r.Lost) > 0 {
		next = "copy the key file of the backed-up server to this host, or run ingot secret reset; then " + next
	}

	_, err := fmt.Fprintf(w, "next: %s\n", next)
	return err
}
