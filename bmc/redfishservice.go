package bmc

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	bmclibredfish "github.com/bmc-toolbox/bmclib/v2/providers/redfish"
	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/common"
	fish "github.com/stmcginnis/gofish/redfish"

	"github.com/ingotmetal/ingot/inventory"
)

// redfishService reads and changes the resources of a service after a log-in.
type redfishService struct {
	bmc       inventory.BMC
	transport *redfishTransport
	writer    *bmclibredfish.Conn
	reader    *gofish.APIClient
	root      *gofish.Service
}

// system returns the resource of the machine's system. It returns an error if there is no such system, or more than one
// that could be meant.
func (s redfishService) system() (*fish.ComputerSystem, error) {
	all, err := s.root.Systems()
	if err != nil {
		return nil, err
	}
	if len(all) == 1 {
		return all[0], nil
	}
	if len(all) == 0 && s.bmc.SystemName != "" {
		return nil, fmt.Errorf("the BMC has no system %q: correct bmc.systemName", s.bmc.SystemName)
	}
	var ids []string
	for _, x := range all {
		ids = append(ids, x.ID)
	}
	return nil, fmt.Errorf("the BMC has %d systems (%s): set one of them as bmc.systemName", len(all), clip(strings.Join(ids, ", ")))
}

// manager returns the resource of the BMC itself: the only manager, or the only one that manages the system.
func (s redfishService) manager() (*fish.Manager, error) {
	all, err := s.root.Managers()
	if len(all) > 1 && s.transport.managedBy == nil {
		if _, err := s.system(); err != nil {
			return nil, err
		}
		all, err = s.root.Managers()
	}
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("the BMC lists %d managers; Ingot needs exactly one", len(all))
	}
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// account returns the account of the user that is logged in.
func (s redfishService) account() (*fish.ManagerAccount, error) {
	service, err := s.root.AccountService()
	if err != nil {
		return nil, err
	}
	all, err := service.Accounts()
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		if a.UserName == s.bmc.User {
			return a, nil
		}
	}
	return nil, fmt.Errorf("the BMC lists no account of user %q: correct bmc.user, or change the password at the BMC", s.bmc.User)
}

// drives returns the virtual drives, sorted by path. In older services they belong to the manager, in newer services to
// the system.
func (s redfishService) drives() (out []*fish.VirtualMedia, err error) {
	defer func() {
		slices.SortFunc(out, func(a, b *fish.VirtualMedia) int { return cmp.Compare(a.ODataID, b.ODataID) })
	}()
	if m, err := s.manager(); err == nil {
		if d, err := m.VirtualMedia(); err == nil && len(d) > 0 {
			return d, nil
		}
	}
	system, err := s.system()
	if err != nil {
		return nil, err
	}
	d, err := system.VirtualMedia()
	if err == nil && len(d) == 0 {
		err = errors.New("the BMC has no virtual drive")
	}
	return d, err
}

// holdsCD reports whether d holds a medium and is a drive for CDs, or a drive of unknown kind.
func holdsCD(d *fish.VirtualMedia) bool {
	other := slices.ContainsFunc(d.MediaTypes, func(kind fish.VirtualMediaType) bool {
		return kind == fish.DVDMediaType || kind == fish.FloppyMediaType || kind == fish.USBStickMediaType
	})
	return d.Inserted && (slices.Contains(d.MediaTypes, fish.CDMediaType) || !other)
}

// inserted returns the URLs of the media in the CD drives. For a medium without a URL, it returns "unknown".
func (s redfishService) inserted() (urls []string, err error) {
	drives, err := s.drives()
	for _, d := range drives {
		if holdsCD(d) {
			urls = append(urls, cmp.Or(d.Image, "unknown"))
		}
	}
	return urls, err
}

// eject ejects the medium at url from the CD drives. If url is empty, it ejects all media. (bmclib would eject the
// medium of only one drive, chosen at random.)
func (s redfishService) eject(url string) error {
	drives, err := s.drives()
	for _, d := range drives {
		if holdsCD(d) && (url == "" || url == d.Image) {
			err = errors.Join(err, d.EjectMedia())
		}
	}
	return err
}

// sensors returns the temperatures and fans of the first chassis that reports any. It returns nil if none does.
func (s redfishService) sensors() (out []inventory.BMCReading) {
	add := func(name string, value float64, unit string, state common.Status) {
		out = append(out, inventory.BMCReading{
			Name: clip(name), Value: value, Unit: clip(unit), Health: strings.ToLower(string(state.Health)),
		})
	}

	all, err := s.root.Chassis()
	if err != nil {
		return nil
	}
	for _, c := range all {
		t, err := c.Thermal()
		if err != nil || t == nil {
			continue
		}
		for _, x := range t.Temperatures {
			add(x.Name, float64(x.ReadingCelsius), "Cel", x.Status)
		}
		for _, x := range t.Fans {
			add(x.Name, float64(x.Reading), string(x.ReadingUnits), x.Status)
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}
