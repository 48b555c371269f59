package bootsvc

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// clients is the dhcp.Decider: it decides for the DHCP server what DHCP clients get.
type clients struct {
	decider *decider
	loaders *loaders
	urls    *urls
	rec     *wire.Recorder
}

// FindClient implements dhcp.Decider. For an unknown client, it returns the zero Client, and the DHCP server then calls
// dhcp.Guests.Discover.
func (c *clients) FindClient(ctx context.Context, r dhcp.Request) (dhcp.Client, error) {
	m, g, err := c.decider.findMachine(ctx, Request{MAC: r.MAC})
	if err != nil {
		return dhcp.Client{}, err
	}
	return c.decider.decide(m, g, Request{MAC: r.MAC, Class: r.Class, Arch: r.Arch, Brief: true}).client(), nil
}

// BootFile implements dhcp.Decider.
func (c *clients) BootFile(ctx context.Context, x dhcp.Client, r dhcp.Request) string {
	log := func() *slog.Logger { return c.decider.cfg.Log.With(x.Owner.LogKeys(x.Boot)...) }
	file, why := c.bootFile(x, r.Class)
	if why != "" {
		log().Error("no boot file for an armed machine", "reason", why)
	}
	kind, message := x.Event, string(r.Class)
	switch {
	case r.Class == wire.ClassNone:
		kind, message = inventory.EventOS, ""
	case x.Armed && file != "":
		kind, message = inventory.EventDHCP, message+", "+archName(r.Arch)+": "+file
	case x.Armed:
		log().Warn("an armed machine asks for a boot file and gets none", "reasons", c.Reasons(ctx, r))
		return ""
	}
	c.rec.Event(newEvent(x.Owner, x.Boot, kind, message))
	return file
}

// bootFile returns the file name or URL that DHCP names to a client, or "". If the client's loader cannot be served,
// DHCP must not name it: why then says the reason. Otherwise why is "".
func (c *clients) bootFile(x dhcp.Client, class wire.Class) (file, why string) {
	switch {
	case x.Interface.DisableDHCP:
		return "", ""
	case x.Script:
		return c.urls.script(x.Interface.MAC, scriptName), ""
	case x.Loader == "":
		return "", ""
	case c.decider.cfg.LoaderDir == "":
		return "", fmt.Sprintf("loader %s is not served: netboot.loaders is not set", x.Loader)
	}
	if why := c.loaders.whyUnserved(x.Loader); why != "" {
		return "", why
	}
	if class == wire.ClassHTTP {
		return c.urls.loader(x.Interface.MAC, x.Loader), ""
	}
	return x.Loader, ""
}

// Reasons implements dhcp.Decider.
func (c *clients) Reasons(ctx context.Context, r dhcp.Request) []string {
	_, _, d, err := c.decider.lookup(ctx, Request{MAC: r.MAC, Class: r.Class, Arch: r.Arch})
	if err != nil {
		return nil // the inventory cannot be read now, or the time for this packet is over
	}
	return d.Reasons
}

// InReservedNetwork implements dhcp.Decider.
func (c *clients) InReservedNetwork(a netip.Addr) bool {
	return c.decider.machines.InReservedNetwork(a)
}
