package cli

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func machineLogCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "log NAME", Short: "Show what a machine has sent by syslog", Args: cobra.ExactArgs(1),
		Long: `Show the newest 500 lines that a machine has sent by syslog. The server receives syslog
on UDP port 514 of its provisioning address (netboot.syslog), and recognizes a machine
by its reserved address. Secrets of the machine's network boots are removed from the
lines.`,
		Example: "  ingot machine log node-1\n  ingot machine log node-1 --limit 20 --sort -seq   # the newest 20\n" +
			"  ingot machine log node-1 -f",
		ValidArgsFunction: firstArg(o.machines()),
	}
	follow, page := followFlags(cmd, "interrupted")

	return o.NewCommand(cmd, func(c *Call) error {
		route := client.Path("machines", c.Args[0], "syslog")
		if *follow {
			news := follower[inventory.SyslogLine]{
				c: c, route: route, seq: func(x inventory.SyslogLine) int64 { return x.Seq }, line: syslogText,
			}
			return c.poll(c.pollEvery, func() (over bool, err error) {
				_, err = news.print()
				return false, err
			}, func() error { return nil })
		}
		q, err := page()
		if err != nil {
			return err
		}
		return getAndShow(c, client.WithQuery(route, q), func(w io.Writer, l client.List[inventory.SyslogLine]) error {
			if len(l.Items) == 0 {
				c.Note("the machine has sent nothing by syslog")
				return nil
			}
			for _, x := range l.Items {
				fmt.Fprintln(w, syslogText(x))
			}
			c.notePage(l.Next)
			return nil
		})
	})
}

func syslogText(x inventory.SyslogLine) string {
	program := x.Program
	if program != "" {
		program += ": "
	}
	return fmt.Sprintf("%s  %-7s  %s", human.Time(x.At), x.Severity, Inert(program+x.Text))
}

func machineCaptureCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "capture NAME", Short: "Capture a machine's packets in a pcap file", Args: cobra.ExactArgs(1),
		Long: `Capture the packets to and from a machine, from now on, in a pcap file for tcpdump or
Wireshark: ARP, DHCP, TFTP and syslog on the interfaces on which the server answers
machines. The capture ends after the duration in --for, at 64 MiB, or with Ctrl-C.

Secrets are not removed from the packets. A boot script that is fetched by TFTP contains
the claim of this boot, a one-time secret, which is invalid after the agent has used it.
With --all, the file also contains HTTP, with the passwords and keys in the user data.`,
		Example: "  ingot machine capture node-1\n  ingot machine capture node-1 --out - | tcpdump -n -r -\n" +
			"  ingot machine capture node-1 --for 30m --out boot.pcap",
		ValidArgsFunction: firstArg(o.machines()),
	}
	out := cmd.Flags().String("out", "", "file to write, - for standard output (default: NAME.pcap)")
	duration := cmd.Flags().Duration("for", 5*time.Minute, "duration of the capture, at most 1h")
	all := cmd.Flags().Bool("all", false, "capture all packets, including HTTP and the secrets in it")

	return o.NewCommand(cmd, func(c *Call) error {
		to := *out
		if to == "" {
			to = c.Args[0] + ".pcap"
		}
		q := url.Values{"for": {duration.String()}}
		if *all {
			q.Set("all", "true")
			c.Note("warning: the file will contain what the machine fetches by HTTP, such as passwords and keys in its user data")
		}
		w, done, err := createCapture(c, to)
		if err != nil {
			return err
		}
		err = copyCapture(c, client.WithQuery(client.Path("machines", c.Args[0], "capture"), q), w)
		return done(err)
	})
}

// createCapture creates the file of a capture, or returns standard output for the name "-". The function done closes
// the file, and removes an empty file. done returns the error that it was called with, joined with its own errors.
func createCapture(c *Call, to string) (w io.Writer, done func(error) error, err error) {
	if to == "-" {
		w, err := c.BinaryOutput("a capture", "--out")
		return w, func(err error) error { return err }, err
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		err = inventory.Invalid("--out", "name another file, or remove it", "%s already exists", to)
	}
	if err != nil {
		return nil, nil, err
	}
	return f, func(err error) error {
		info, statErr := f.Stat()
		err = errors.Join(err, statErr, f.Close())
		if statErr == nil && info.Size() == 0 {
			return errors.Join(err, os.Remove(to))
		}
		c.Note("wrote %s, %s", to, human.Size(info.Size()))
		return err
	}, nil
}

// copyCapture copies a capture to w until the capture ends. An interruption by the operator is not an error.
func copyCapture(c *Call, route string, w io.Writer) error {
	resp, err := c.Request(http.MethodGet, route, nil, 0)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	c.Note("capturing; end it with Ctrl-C")
	_, err = io.Copy(w, resp.Body)
	if c.Context().Err() != nil {
		return nil
	}
	return err
}
