package cli

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
)

func machineDisksCommand(o *Options) *cobra.Command {
	type disks struct {
		Items []action.Disk `json:"items"`
		At    time.Time     `json:"at"`
	}

	return o.NewCommand(&cobra.Command{
		Use: "disks NAME", Short: "List a machine's disks, as reported by the agent",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.machines()),
		Example: "  ingot machine inspect node-1 --wait && ingot machine disks node-1",
	}, func(c *Call) error {
		return getAndShow(c, client.Path("machines", c.Args[0], "disks"), func(w io.Writer, d disks) error {
			if len(d.Items) == 0 {
				c.Note("the agent found no disk")
				return nil
			}
			c.Note("as found %s", human.Ago(d.At))
			return printDisks(w, d.Items)
		})
	})
}

// printDisks prints a table of disks, with the flag that selects each disk.
func printDisks(w io.Writer, disks []action.Disk) error {
	return PrintTable(w, []string{"PATH", "SIZE", "MODEL", "BY", "HOLDS", "SELECT WITH"}, disks, func(d action.Disk) []any {
		holds := strings.Join(d.Signatures, ", ")
		if d.Blank {
			holds = "nothing"
		}
		if d.Written != "" {
			holds = strings.TrimPrefix(holds+", ", ", ") + "written by run " + d.Written
		}
		transport := d.Transport
		if d.Removable {
			transport += " removable"
		}
		if d.SectorSize > 512 {
			transport += fmt.Sprintf(", %d-byte sectors", d.SectorSize)
		}
		return []any{d.Path, human.Size(d.Size), d.Model, transport, holds, diskFlag(d)}
	})
}

// diskFlag returns the flag that selects d, quoted for a shell, or "" if the disk has no stable identity.
func diskFlag(d action.Disk) string {
	switch {
	case d.Serial != "":
		return "--disk-serial " + ShellWord(d.Serial)
	case d.WWN != "":
		return "--disk-wwn " + ShellWord(d.WWN)
	case len(d.ByID) > 0:
		return "--disk-by-id " + ShellWord(d.ByID[0])
	}

	return ""
}

// diskText describes a disk and the data on it. The text ends with a comma.
func diskText(d action.Disk) string {
	text := d.Path
	for _, x := range [][2]string{{"", d.Model}, {"serial ", d.Serial}, {"wwn ", d.WWN}} {
		if x[1] != "" {
			text += " " + x[0] + x[1]
		}
	}

	text += ", " + human.Size(d.Size)
	switch {
	case d.Blank:
		text += ", blank"
	case len(d.Signatures) > 0:
		text += ", which holds " + strings.Join(d.Signatures, ", ")
	}

	return Inert(text + ",")
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:=@%+,-]+$`)

// ShellWord returns s, quoted for a shell. s comes from a machine; quoted, it cannot run another command when a
// command line with it is pasted.
func ShellWord(s string) string {
	s = Inert(s)
	if plainWord.MatchString(s) && !strings.HasPrefix(s, "-") {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
