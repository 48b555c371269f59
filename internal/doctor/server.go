package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/httpclient"
	"github.com/ingotmetal/ingot/internal/server"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// checkServer reads the server's status into d.status. It warns if the server does not answer.
func checkServer(ctx context.Context, d *host) []Finding {
	var err error
	if d.remote, err = d.lookup.FindServer(); err != nil {
		return []Finding{warn("cannot be contacted: %v", err).remedy("ingot serve")}
	}

	st, err := client.Get[apitypes.Status](ctx, d.remote, client.Path("status"))
	if err != nil {
		return []Finding{warn("%v", err)}
	}

	d.status = &st.Value
	return nil
}

func checkServerClock(_ context.Context, d *host) []Finding {
	if apart := time.Since(d.status.Time).Abs(); apart > 5*time.Second {
		return []Finding{warn("the clocks of the server and of this host differ by %s", human.Span(apart))}
	}
	return nil
}

func checkTemporal(_ context.Context, d *host) []Finding {
	if t := d.status.Temporal; !t.Ready {
		return []Finding{fail("not ready: %s", cmp.Or(t.Error, "it is starting"))}
	}
	return []Finding{ok("ready at %s", d.status.Temporal.Address)}
}

// checkNotices checks that the receiver accepts the server's notices.
func checkNotices(_ context.Context, d *host) []Finding {
	n := d.status.Notify
	if n == nil {
		if d.cfg.Notify.URL == "" {
			return nil
		}
		return []Finding{warn("the running server sends no notices: it was started with another configuration").remedy(
			"restart ingot serve")}
	}

	last := "no run has needed a notice yet (ingot notify test sends one)"
	if !n.Sent.IsZero() {
		last = "the last notice was accepted " + human.Ago(n.Sent)
	}

	switch {
	case n.Error != "":
		return []Finding{fail("%s not accepted, the oldest since %s: %s; %s",
			human.Count(n.Waiting, "notice"), human.Time(n.Oldest), n.Error, last)}
	case n.Dropped > 0:
		return []Finding{warn("%s dropped; %s", human.Count(n.Dropped, "notice"), last).remedy(
			"ingot status shows what waits for an operator")}
	case n.Waiting > 0:
		return []Finding{ok("%s being sent; %s", human.Count(n.Waiting, "notice"), last)}
	}

	return []Finding{ok("no notice is waiting; %s", last)}
}

func checkSecrets(ctx context.Context, d *host) []Finding {
	a, err := client.Get[apitypes.SecretsStatus](ctx, d.remote, client.Path("secrets"))
	switch {
	case err != nil:
		return []Finding{fail("%v", err)}
	case a.Value.State != "ok":
		lost := human.Count(len(a.Value.Unreadable), "secret")
		return []Finding{fail("the key is %s: %s cannot be read", a.Value.State, lost).remedy(
			"restore the correct key file; if it is lost, run ingot secret reset")}
	}

	return []Finding{ok("can be read")}
}

func checkImages(ctx context.Context, d *host) (out []Finding) {
	a, err := client.GetAll[inventory.Image](ctx, d.remote, client.Path("images"))
	if err != nil {
		return []Finding{fail("%v", err)}
	}
	if len(a.Value.Items) == 0 {
		return []Finding{warn("the inventory has no images").remedy("ingot image add NAME FILE")}
	}

	for _, i := range a.Value.Items {
		if i.File == "" {
			out = append(out, checkImageURL(ctx, i))
		} else {
			out = append(out, d.checkImageFile(i))
		}
	}

	return out
}

func checkImageURL(ctx context.Context, i inventory.Image) Finding {
	status, err := headURL(ctx, i.URL, false)
	if err == nil && status >= http.StatusBadRequest {
		err = fmt.Errorf("the server answered %d %s", status, http.StatusText(status))
	}
	if err != nil {
		return fail("%s at %s: %v", i.Name, i.URL, err).remedy("correct its URL: ingot image add " + i.Name + " URL")
	}

	return ok("%s answers at %s", i.Name, i.URL)
}

// checkImageFile checks that the file of an image exists and has the recorded size. If the server runs on another
// host, a missing file is no problem.
func (d *host) checkImageFile(i inventory.Image) Finding {
	again := "ingot image add " + i.Name + " FILE"
	file := filepath.Join(d.cfg.ImageDir(), i.File)
	if i.InPlace != nil {
		file, again = i.InPlace.Path, "mount the share, restore the file, or run ingot image add "+i.Name+" "+i.InPlace.Path+" --in-place"
	}
	st, err := os.Stat(file)
	switch {
	case err != nil && !d.asksThisHost():
		return ok("%s, %s", i.Name, human.Size(i.Size))
	case err != nil:
		return fail("%s: the file is missing: %v", i.Name, errors.Unwrap(err)).remedy(again)
	case st.Size() != i.Size:
		return fail("%s: the file has %d bytes instead of %d", i.Name, st.Size(), i.Size).remedy(again)
	}

	return ok("%s, %s (ingot image verify %s checks the content)", i.Name, human.Size(i.Size), i.Name)
}

func checkMachines(ctx context.Context, d *host) []Finding {
	ms, err := client.GetAll[apitypes.MachineView](ctx, d.remote, client.Path("machines"))
	if err != nil {
		return []Finding{fail("%v", err)}
	}
	d.machines = ms.Value.Items
	return nil
}

// checkReservations checks that the server can give machines their reserved addresses, if it runs on this host.
func checkReservations(_ context.Context, d *host) []Finding {
	if !d.asksThisHost() {
		return nil
	}
	return reservationFindings(server.NetworkOf(d.cfg.Netboot), d.machines)
}

func reservationFindings(n inventory.Network, views []apitypes.MachineView) (out []Finding) {
	var ms []inventory.Machine
	for _, m := range views {
		ms = append(ms, m.Machine)
		for _, i := range m.Interfaces {
			if whose := n.Taken(i.Address); whose != "" {
				out = append(out, warn("%s: %s is %s", m.Name, i.Address, whose).remedy(
					"give the machine another address with ingot machine push --replace, unless this server runs on it"))
			}
		}
	}

	for _, w := range n.Warnings(ms) {
		out = append(out, warn("%s", w))
	}

	return out
}

// parallelBMCs is how many BMCs are contacted at the same time.
const parallelBMCs = 8

// checkBMCs makes the server log in to every BMC.
func checkBMCs(ctx context.Context, d *host) (out []Finding) {
	found := make([]*Finding, len(d.machines))
	var g errgroup.Group
	g.SetLimit(parallelBMCs)
	for n, m := range d.machines {
		if m.BMC.Manual() {
			continue
		}
		g.Go(func() error {
			f := d.checkMachineBMC(ctx, m.Machine)
			found[n] = &f
			return nil
		})
	}

	_ = g.Wait() // the functions return no errors
	for _, f := range found {
		if f != nil {
			out = append(out, *f)
		}
	}

	return out
}

func (d *host) checkMachineBMC(ctx context.Context, m inventory.Machine) Finding {
	where := m.BMC.Host
	if m.BMC.Driver == inventory.DriverExec {
		where = "the command " + m.BMC.Command
	}

	a, err := client.Send[apitypes.BMCCheck](
		ctx, d.remote, http.MethodPost, client.Path("bmc", "check"), map[string]string{"machine": m.Name})
	switch {
	case err != nil:
		return fail("%s: %v", m.Name, err).remedy("ingot bmc check " + m.Name)
	case !a.Value.OK:
		return fail("%s at %s: %s", m.Name, where, a.Value.Message).remedy("ingot bmc check " + m.Name)
	}

	return ok("%s at %s accepts the log-in, power is %s", m.Name, where, a.Value.Power)
}

// headURL sends a HEAD request to u and returns the status code. If insecure is true, it accepts
// any certificate: machines do not verify a chain, they pin the server's key.
func headURL(ctx context.Context, u string, insecure bool) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return httpclient.Head(ctx, u, insecure)
}
