package activities

import (
	"context"
	"fmt"
	"maps"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/inventory"
)

// seeds resolves references in a run's actions to values that are known only when an action is assigned.
type seeds struct {
	a *shared
	o inventory.Owner
	m inventory.Machine
}

func (s seeds) phoneHomeURL() string {
	return cloudinit.PhoneHomeURL(s.a.Site.MetadataURL, s.a.Site.ClaimKey, s.o)
}

func (s seeds) resolve(ctx context.Context, ref string) (string, error) {
	switch ref {
	case inventory.RefUserData:
		user, _, err := s.a.Machines.UserData(ctx, s.o.Machine)
		return user.Reveal(), err
	case inventory.RefVendorData:
		_, vendor, err := s.a.Machines.UserData(ctx, s.o.Machine)
		return vendor.Reveal(), err
	}
	if v, ok := cloudinit.Reference(ref, s.a.Site.MetadataURL, s.a.Site.ClaimKey, s.o); ok {
		return v, nil
	}
	return "", fmt.Errorf("secret reference %q: %w", ref, inventory.ErrInvalid)
}

// configDrive adds to the environment of x those cloud-init documents (NoCloud) that the template does not provide.
func (s seeds) configDrive(ctx context.Context, x action.Action) (action.Action, error) {
	m := s.m
	var err error
	if m.UserData, m.VendorData, err = s.a.Machines.UserData(ctx, m.Name); err != nil {
		return x, err
	}

	env := map[string]string{
		"META_DATA":      string(cloudinit.MetaData(m, "")),
		"USER_DATA":      string(cloudinit.UserData(m)),
		"VENDOR_DATA":    string(cloudinit.VendorData(m, s.phoneHomeURL())),
		"NETWORK_CONFIG": string(cloudinit.NetworkConfig(m)),
	}

	maps.Copy(env, x.Environment)
	x.Environment = env
	return x, nil
}
