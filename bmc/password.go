package bmc

import (
	"context"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// SetPassword changes the password of the BMC's user b.User to next. It does not check that the BMC accepts next: the
// caller must log in with next to check it. fence has the same meaning as for Set.
func (d *Driver) SetPassword(ctx context.Context, b inventory.BMC, password, next inventory.Secret,
	fence func(context.Context) error,
) error {
	return d.with(ctx, b, password, "changing the password", func(s *session) error {
		p, ok := s.provider.(passwordSetter)
		if !ok {
			return fmt.Errorf("the driver %s cannot change passwords: change the password at the BMC, and then in the inventory: %w", b.Driver,
				inventory.ErrUnsupported)
		}
		s.fence = fence
		return s.write(ctx, func() error { return p.setPassword(ctx, next) })
	})
}
