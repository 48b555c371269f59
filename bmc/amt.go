package bmc

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	bmclibbmc "github.com/bmc-toolbox/bmclib/v2/bmc"

	"github.com/ingotmetal/ingot/inventory"
)

// Instances of AMT's boot classes.
const (
	bootConfiguration = "Intel(r) AMT: Boot Configuration 0"
	forcePXE          = "Intel(r) AMT: Force PXE Boot"
	forceDisk         = "Intel(r) AMT: Force Hard-drive Boot"
	forceCD           = "Intel(r) AMT: Force CD/DVD Boot"
)

var bootSources = map[string]string{"pxe": forcePXE, "disk": forceDisk, "cdrom": forceCD}

// amtTime bounds one command: choosing a boot source is some fifteen requests.
const amtTime = 60 * time.Second

// Values of PowerState (CIM_AssociatedPowerManagementService).
const (
	amtOn          = 2
	amtCycle       = 5
	amtOffHard     = 6
	amtHibernate   = 7
	amtOffSoft     = 8 // to ACPI's S5, at once
	amtCycleHard   = 9
	amtReset       = 10
	amtOffGraceful = 12 // by the system
	amtOffHardBy   = 13
)

// amtWays are the power states to request for each command, the best first. Only
// soft involves the system, which may never do what it is asked: bmclib's own
// provider prefers such states for off, too.
var amtWays = map[string][]int{
	"on": {amtOn}, "off": {amtOffSoft, amtOffHard}, "soft": {amtOffGraceful, amtOffHardBy},
	"reset": {amtReset, amtCycle, amtCycleHard},
}

// amt is a provider of bmclib for one operation on Intel's Active Management
// Technology. It sends what bmclib's own provider sends, and differs in this: an
// answer's return value counts, nothing is done to a machine whose state could not
// be read, off does not involve the system, what boots next is read back, redirects
// are not followed, and the TLS key is checked.
type amt struct {
	link
	*wsman
}

var (
	_ provider    = (*amt)(nil)
	_ bootChooser = (*amt)(nil)
	_ selfTester  = (*amt)(nil)
)

func newAMT(_ *Driver, l link, name string, b inventory.BMC, password inventory.Secret) (provider, error) {
	if password.IsZero() {
		return nil, fmt.Errorf("AMT has no password: set one: %w", inventory.ErrRefused)
	}
	return &amt{link: l, wsman: newWSMan(name, b, password)}, nil
}

// Name names the provider in bmclib's errors.
func (p *amt) Name() string { return "ingot-amt" }

// Close gives the connection back.
func (p *amt) Close(context.Context) error {
	p.close()
	return nil
}

// run carries out one command within its time.
func (p *amt) run(ctx context.Context, command func(context.Context) error) error {
	return p.do(ctx, func() error {
		limited, cancel := context.WithTimeout(ctx, amtTime)
		defer cancel()
		err := command(limited)
		if err != nil && limited.Err() != nil && ctx.Err() == nil {
			return fmt.Errorf("AMT took longer than %s: %w", amtTime, inventory.ErrUnreachable)
		}
		return err
	})
}

// PowerStateGet returns on, off or sleeping, or the number of another state.
func (p *amt) PowerStateGet(ctx context.Context) (state string, err error) {
	err = p.run(ctx, func(ctx context.Context) error {
		n, _, err := p.power(ctx)
		switch n {
		case amtOn:
			state = "on"
		case amtOffHard, amtOffSoft, amtHibernate:
			state = "off"
		case 3, 4: // asleep: it goes on where it was when it is woken
			state = "sleeping"
		default:
			state = "state " + strconv.Itoa(n)
		}
		return err
	})
	return state, err
}

// power reads the power state, and the states that may be requested in it; nil: AMT
// does not report them.
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
				return 0, nil, fmt.Errorf("reading power state %q: %w", clip(n.Text), inventory.ErrUnsupported)
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

// PowerSet asks for one change.
func (p *amt) PowerSet(ctx context.Context, word string) (bool, error) {
	ways, ok := amtWays[word]
	if !ok {
		return false, p.cannot("AMT does not support %s", word)
	}

	err := p.run(ctx, func(ctx context.Context) error {
		_, may, err := p.power(ctx)
		if err != nil {
			return err
		}
		way := ways[0]
		if len(may) > 0 {
			n := slices.IndexFunc(ways, func(w int) bool { return slices.Contains(may, w) })
			if n < 0 {
				return fmt.Errorf("AMT offers no %s now, only the states %v: %w", word, may, inventory.ErrUnsupported)
			}
			way = ways[n]
		}
		return p.ask(ctx, "CIM_PowerManagementService", "RequestPowerStateChange", element("PowerState", strconv.Itoa(way))+
			"<r:ManagedElement>"+
			reference(nsCIM+"CIM_ComputerSystem", "CreationClassName", "CIM_ComputerSystem", "Name", "ManagedSystem")+
			"</r:ManagedElement>")
	})

	return err == nil, err
}

// ask calls a method that returns 0, or 4096 for a job that was started.
func (p *amt) ask(ctx context.Context, class, method, input string) error {
	n, err := p.invoke(ctx, nsCIM+class, method, input)
	switch {
	case err != nil:
		return err
	case n == 1:
		return fmt.Errorf("AMT has no %s: %w", method, inventory.ErrUnsupported)
	case n != 0 && n != 4096:
		return fmt.Errorf("AMT refused %s with return value %d: %w", method, n, inventory.ErrUnreachable)
	}
	return nil
}

// readOnlySettings are those of AMT_BootSettingData that only AMT writes.
var readOnlySettings = []string{
	"BIOSLastStatus", "BootguardStatus", "OptionsCleared", "SecureBootControlEnabled", "UEFIHTTPSBootEnabled",
	"UEFILocalPBABootEnabled",
	"UefiBootNumberOfParams", "UefiBootParametersArray", "WinREBootEnabled", "RPEEnabled",
}

// ready returns an error when AMT would accept a boot device without an effect.
func (p *amt) ready(ctx context.Context) error { return p.run(ctx, p.mayChoose) }

// BootDeviceSet chooses the boot source of the next start. First the old choice is
// removed, which some versions do not do on their own; then the settings, the role
// and the source are set, in this order.
func (p *amt) BootDeviceSet(ctx context.Context, device string, _, _ bool) (bool, error) {
	source, ok := bootSources[device]
	if !ok && device != "none" {
		return false, p.cannot("AMT cannot boot %s", device)
	}

	err := p.run(ctx, func(ctx context.Context) error {
		if err := p.mayChoose(ctx); err != nil {
			return err
		}

		// A version that refuses an empty order keeps its old one, which the new one
		// replaces.
		if err := p.ask(ctx, "CIM_BootConfigSetting", "ChangeBootOrder", ""); err != nil &&
			(device == "none" || final(err) && !isUnsupported(err)) {
			return err
		}
		if device == "none" {
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

	return err == nil, err
}

// mayChoose refuses when AMT would accept a boot source and do nothing: in
// client control mode, an operator at the machine has to consent.
func (p *amt) mayChoose(ctx context.Context) error {
	n, err := p.get(ctx, nsIPS+"IPS_HostBasedSetupService")
	if err != nil {
		if isUnsupported(err) {
			return nil // before version 7 there is no such mode
		}
		return err
	}
	if n.text("CurrentControlMode") == "1" {
		return fmt.Errorf("AMT is in client control mode, in which it accepts a boot device and does nothing; "+
			"set it up in admin control mode: %w", inventory.ErrUnsupported)
	}
	return nil
}

// resetSettings undoes settings that earlier users of AMT may have left.
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

// BootDeviceOverrideGet reads which boot source is ordered, and whether it is
// that of the next start. A version that does not report it is a blindError.
func (p *amt) BootDeviceOverrideGet(ctx context.Context) (bmclibbmc.BootDeviceOverride, error) {
	o := bmclibbmc.BootDeviceOverride{Device: bmclibbmc.BootDeviceTypeNone}
	err := p.run(ctx, func(ctx context.Context) error {
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
		o.Device = "unknown"
		for device, source := range bootSources {
			if source == sources[0] {
				o.Device = bmclibbmc.BootDeviceType(device)
			}
		}
		return nil
	})
	return o, err
}

// ordered returns the boot sources of the boot configuration: none or one.
func (p *amt) ordered(ctx context.Context) (sources []string, err error) {
	items, err := p.list(ctx, nsCIM+"CIM_OrderedComponent")
	if isUnsupported(err) || err == nil && len(items) == 0 {
		return nil, blindError{"it was set, but this AMT does not tell what boots next"}
	}

	for i := range items {
		part := items[i].first("PartComponent").selector("InstanceID")
		if n, err := strconv.Atoi(items[i].text("AssignedSequence")); err == nil && n > 0 && strings.Contains(part, "Boot") {
			sources = append(sources, part)
		}
	}
	if len(sources) > 1 {
		return nil, blindError{"it was set, but this AMT lists several boot sources"}
	}
	return sources, err
}

// isNext reports whether the boot configuration is that of the next start.
func (p *amt) isNext(ctx context.Context) (bool, error) {
	items, err := p.list(ctx, nsCIM+"CIM_ElementSettingData")
	if err != nil && !isUnsupported(err) {
		return false, err
	}

	for i := range items {
		if items[i].first("SettingData").selector("InstanceID") != bootConfiguration {
			continue
		}
		next := items[i].text("IsNext") // 1 next, 2 not, 3 next and once
		return next == "1" || next == "3", nil
	}
	return false, blindError{"it was set, but this AMT does not tell whether it is in force"}
}
