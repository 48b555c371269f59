package bmc

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Instance IDs of AMT's boot classes.
const (
	bootConfiguration = "Intel(r) AMT: Boot Configuration 0"
	forcePXE          = "Intel(r) AMT: Force PXE Boot"
	forceDisk         = "Intel(r) AMT: Force Hard-drive Boot"
	forceCD           = "Intel(r) AMT: Force CD/DVD Boot"
)

var bootSources = map[string]string{"pxe": forcePXE, "disk": forceDisk, "cdrom": forceCD}

// amtTime limits one command: setting a boot source takes about fifteen requests.
const amtTime = 60 * time.Second

// Values of PowerState (CIM_AssociatedPowerManagementService).
const (
	amtOn          = 2
	amtCycle       = 5
	amtOffHard     = 6
	amtHibernate   = 7
	amtOffSoft     = 8 // immediately, to ACPI S5
	amtCycleHard   = 9
	amtReset       = 10
	amtOffGraceful = 12 // the operating system shuts down, then the machine is off
	amtOffHardBy   = 13
)

// amtWays maps each power command to the PowerState values that Ingot may request for it, most preferred first. Only
// the values for soft involve the operating system, which may ignore the request. (bmclib's own provider prefers such
// values for off, too.)
var amtWays = map[string][]int{
	"on": {amtOn}, "off": {amtOffSoft, amtOffHard}, "soft": {amtOffGraceful, amtOffHardBy},
	"reset": {amtReset, amtCycle, amtCycleHard},
}

// amt is a provider for one operation on Intel's Active Management Technology. It sends the same requests as bmclib's
// own provider. But amt also checks return values, writes only if the power state can be read, switches off without the
// operating system, reads the boot source back, follows no redirects, and checks the TLS key.
type amt struct {
	link
	*wsman
	now func() time.Time
}

var (
	_ provider    = (*amt)(nil)
	_ bootChooser = (*amt)(nil)
	_ selfTester  = (*amt)(nil)
	_ inspector   = (*amt)(nil)
)

func newAMT(d *Driver, l link, name string, b inventory.BMC, password inventory.Secret) (provider, error) {
	if password.IsZero() {
		return nil, fmt.Errorf("AMT needs a password; set bmc.password of the machine: %w", inventory.ErrRefused)
	}
	ports := amtPorts(b, d.cfg.now().Sub(l.target.clear) < clearFor)
	w := newWSMan(ports, b.User, password, d.tlsConfig(name, b))
	if len(ports) > 1 {
		w.mayBeClear = d.mayBeClear(name, b)
	}
	return &amt{link: l, wsman: w, now: d.cfg.now}, nil
}

// close closes the connection. If AMT has answered only on the port without TLS, close stores the current time in the
// target, so that later operations try this port first.
func (p *amt) close(context.Context) error {
	if now := p.now(); now.Sub(p.target.clear) >= clearFor && len(p.ports) == 1 && !p.port.secure {
		p.target.clear = now
	}
	p.http.CloseIdleConnections()
	return nil
}

// inspect sets r.Endpoint to the URL of the port that is used.
func (p *amt) inspect(_ context.Context, r *inventory.BMCReport) error {
	r.Endpoint = p.port.url
	return nil
}

// run runs one command and stops it after amtTime.
func (p *amt) run(ctx context.Context, command func(context.Context) error) error {
	return p.do(ctx, func() error {
		limited, cancel := context.WithTimeout(ctx, amtTime)
		defer cancel()
		err := command(limited)
		if err != nil && limited.Err() != nil && ctx.Err() == nil {
			return silentError{fmt.Sprintf("AMT, within %s", amtTime), err}
		}
		return err
	})
}

// readPower returns "on", "off" or "sleeping". For any other state, it returns "state" and the number of the state.
func (p *amt) readPower(ctx context.Context) (state string, err error) {
	err = p.run(ctx, func(ctx context.Context) error {
		n, _, err := p.power(ctx)
		switch n {
		case amtOn:
			state = "on"
		case amtOffHard, amtOffSoft, amtHibernate:
			state = "off"
		case 3, 4: // the machine sleeps, and continues with the same running system when it wakes
			state = "sleeping"
		default:
			state = "state " + strconv.Itoa(n)
		}
		return err
	})
	return state, err
}

// power returns the current power state, and (as may) the states that AMT accepts now. may is nil if AMT does not
// report which states it accepts.
func (p *amt) power(ctx context.Context) (state int, may []int, err error) {
	items, err := p.list(ctx, nsCIM+"CIM_AssociatedPowerManagementService")
	if err != nil {
		return 0, nil, err
	}

	for _, item := range items {
		for _, n := range item.Nodes {
			v, err := strconv.Atoi(strings.TrimSpace(n.Text))
			switch name := n.XMLName.Local; {
			case name == "PowerState" && err != nil:
				return 0, nil, fmt.Errorf("AMT reports the invalid power state %q; must be a number: %w", clip(n.Text), inventory.ErrUnsupported)
			case name == "PowerState":
				state = v
			case name == "AvailableRequestedPowerStates" && err == nil:
				may = append(may, v)
			}
		}
	}
	if state == 0 {
		return 0, nil, fmt.Errorf("AMT does not report the power state: %w", inventory.ErrUnsupported)
	}
	return state, may, nil
}

func (p *amt) setPower(ctx context.Context, power string) error {
	ways, ok := amtWays[power]
	if !ok {
		return fmt.Errorf("AMT does not support %s: %w", power, inventory.ErrUnsupported)
	}
	return p.run(ctx, func(ctx context.Context) error {
		_, may, err := p.power(ctx)
		if err != nil {
			return err
		}
		way := ways[0]
		if len(may) > 0 {
			n := slices.IndexFunc(ways, func(w int) bool { return slices.Contains(may, w) })
			if n < 0 {
				return fmt.Errorf("AMT does not accept %s now; it accepts only the power states %v: %w", power, may, inventory.ErrUnsupported)
			}
			way = ways[n]
		}
		return p.ask(ctx, "CIM_PowerManagementService", "RequestPowerStateChange", element("PowerState", strconv.Itoa(way))+
			"<r:ManagedElement>"+
			reference(nsCIM+"CIM_ComputerSystem", "CreationClassName", "CIM_ComputerSystem", "Name", "ManagedSystem")+
			"</r:ManagedElement>")
	})
}

// ask calls a method. It returns an error unless the method returns 0 (success) or 4096 (job started).
func (p *amt) ask(ctx context.Context, class, method, input string) error {
	n, err := p.invoke(ctx, nsCIM+class, method, input)
	switch {
	case err != nil:
		return err
	case n == 1:
		return fmt.Errorf("AMT does not support %s: %w", method, inventory.ErrUnsupported)
	case n != 0 && n != 4096:
		return fmt.Errorf("AMT refused %s with return value %d: %w", method, n, inventory.ErrUnreachable)
	}
	return nil
}

// readOnlySettings are the properties of AMT_BootSettingData that only AMT may change.
var readOnlySettings = []string{
	"BIOSLastStatus", "BootguardStatus", "OptionsCleared", "SecureBootControlEnabled", "UEFIHTTPSBootEnabled",
	"UEFILocalPBABootEnabled",
	"UefiBootNumberOfParams", "UefiBootParametersArray", "WinREBootEnabled", "RPEEnabled",
}

// ready returns an error if AMT would accept a boot device but not boot from it.
func (p *amt) ready(ctx context.Context) error { return p.run(ctx, p.mayChoose) }

// setBootDevice sets the boot source of the next start. It first removes the old source, because some versions of AMT
// do not replace a source. Then it writes the settings, the role and the source, in this order.
func (p *amt) setBootDevice(ctx context.Context, want inventory.BootDevice) error {
	source, ok := bootSources[want.Device]
	if !ok && want.Device != "none" {
		return fmt.Errorf("AMT does not support boot device %s: %w", want.Device, inventory.ErrUnsupported)
	}
	return p.run(ctx, func(ctx context.Context) error {
		if err := p.mayChoose(ctx); err != nil {
			return err
		}

		// A version of AMT that rejects an empty boot order keeps the old boot order. This is an error only for the
		// device none. For any other device, the boot order that is set below replaces the old one.
		if err := p.ask(ctx, "CIM_BootConfigSetting", "ChangeBootOrder", ""); err != nil &&
			(want.Device == "none" || final(err) && !isUnsupported(err)) {
			return err
		}
		if want.Device == "none" {
			return nil
		}
		if err := p.resetSettings(ctx); err != nil {
			return err
		}
		config := reference(nsCIM+"CIM_BootConfigSetting", "InstanceID", bootConfiguration)
		if err := p.ask(ctx, "CIM_BootService", "SetBootConfigRole",
			"<r:BootConfigSetting>"+config+"</r:BootConfigSetting>"+element("Role", "1")); err != nil {
			return err
		}
		return p.ask(ctx, "CIM_BootConfigSetting", "ChangeBootOrder",
			"<r:Source>"+reference(nsCIM+"CIM_BootSourceSetting", "InstanceID", source)+"</r:Source>")
	})
}

// mayChoose returns an error if AMT is in client control mode. In this mode, AMT accepts a boot source but does not use
// it, because a user at the machine would have to consent.
func (p *amt) mayChoose(ctx context.Context) error {
	n, err := p.get(ctx, nsIPS+"IPS_HostBasedSetupService")
	if err != nil {
		if isUnsupported(err) {
			return nil // AMT before version 7 has no client control mode
		}
		return err
	}
	if n.text("CurrentControlMode") == "1" {
		return fmt.Errorf("AMT is in client control mode, which ignores the boot device; "+
			"provision AMT in admin control mode: %w", inventory.ErrUnsupported)
	}
	return nil
}

// resetSettings clears boot settings that other users of AMT may have left.
func (p *amt) resetSettings(ctx context.Context) error {
	resource := nsAMT + "AMT_BootSettingData"
	old, err := p.get(ctx, resource)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<r:AMT_BootSettingData xmlns:r="%s">`, resource)
	for _, s := range old.Nodes {
		name, value := s.XMLName.Local, strings.TrimSpace(s.Text)
		switch {
		case slices.Contains(readOnlySettings, name):
			continue
		case slices.Contains([]string{
			"BIOSPause", "BIOSSetup", "ConfigurationDataReset", "ReflashBIOS", "SecureErase",
			"PlatformErase", "UseIDER",
		}, name):
			value = "false"
		case name == "BootMediaIndex":
			value = "0"
		}

		b.WriteString(element(name, value))
	}

	b.WriteString("</r:AMT_BootSettingData>")
	_, err = p.call(ctx, nsXfer+"/Put", resource, b.String())
	return err
}

// readBootDevice reads the boot source of the next start. It returns a blindError if this version of AMT does not
// report that source.
func (p *amt) readBootDevice(ctx context.Context) (b inventory.BootDevice, err error) {
	b.Device = "none"
	err = p.run(ctx, func(ctx context.Context) error {
		sources, err := p.ordered(ctx)
		if err != nil {
			return err
		}
		active, err := p.isNext(ctx)
		if err != nil {
			return err
		}
		if !active || len(sources) == 0 {
			return nil
		}
		b.Device = "unknown"
		for device, source := range bootSources {
			if source == sources[0] {
				b.Device = device
			}
		}
		return nil
	})
	return b, err
}

// ordered returns the boot source that the boot configuration contains, or nil if it contains none. It returns a
// blindError if AMT reports no boot order, or a boot order with several sources.
func (p *amt) ordered(ctx context.Context) (sources []string, err error) {
	items, err := p.list(ctx, nsCIM+"CIM_OrderedComponent")
	if isUnsupported(err) || err == nil && len(items) == 0 {
		return nil, blindError{"this version of AMT does not report the next boot device"}
	}

	for i := range items {
		part := items[i].first("PartComponent").selector("InstanceID")
		if n, err := strconv.Atoi(items[i].text("AssignedSequence")); err == nil && n > 0 && strings.Contains(part, "Boot") {
			sources = append(sources, part)
		}
	}
	if len(sources) > 1 {
		return nil, blindError{"this version of AMT lists several boot sources, not only the next one"}
	}
	return sources, err
}

// isNext reports whether the boot configuration applies to the next start. It returns a blindError if AMT does not
// report to which starts the configuration applies.
func (p *amt) isNext(ctx context.Context) (bool, error) {
	items, err := p.list(ctx, nsCIM+"CIM_ElementSettingData")
	if err != nil && !isUnsupported(err) {
		return false, err
	}

	for i := range items {
		if items[i].first("SettingData").selector("InstanceID") != bootConfiguration {
			continue
		}
		next := items[i].text("IsNext") // 1: for the next start, 2: not for the next start, 3: only for the next start
		return next == "1" || next == "3", nil
	}
	return false, blindError{"this version of AMT does not report whether the boot device applies to the next start"}
}
