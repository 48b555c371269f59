package bmc

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	fish "github.com/stmcginnis/gofish/redfish"

	"github.com/ingotmetal/ingot/inventory"
)

// passwordSetter is a provider that can change the password of the user that is logged in.
type passwordSetter interface {
	setPassword(ctx context.Context, next inventory.Secret) error
}

// SetPassword changes the password of the BMC's user b.User. It does not prove the new one: the caller logs
// in with it. fence is as in Set.
func (d *Driver) SetPassword(ctx context.Context, b inventory.BMC, password, next inventory.Secret,
	fence func(context.Context) error,
) error {
	return d.with(ctx, b, password, "changing the password", func(s *session) error {
		p, ok := s.provider.(passwordSetter)
		if !ok {
			return fmt.Errorf("the driver %s cannot change passwords: change it at the BMC, and then in the inventory: %w", b.Driver,
				inventory.ErrUnsupported)
		}
		s.fence = fence
		return s.write(ctx, func() (bool, error) { return true, p.setPassword(ctx, next) })
	})
}

// accountsPath is in the path of an account, about which an answer may repeat a password.
const accountsPath = "/Accounts/"

// setPassword changes the password of the user's account (DSP0266, ManagerAccount).
func (p *redfish) setPassword(ctx context.Context, next inventory.Secret) error {
	return p.run(ctx, func() error {
		account, err := p.account()
		if err != nil {
			return err
		}
		read, err := p.reader.Get(account.ODataID)
		if err != nil {
			return err
		}
		header := map[string]string{}
		if etag := read.Header.Get("ETag"); etag != "" {
			header["If-Match"] = etag
		}
		if err := read.Body.Close(); err != nil {
			return err
		}

		res, err := p.reader.PatchWithHeaders(account.ODataID, map[string]string{"Password": next.Reveal()}, header)
		if err != nil {
			return err
		}
		if res.StatusCode == http.StatusAccepted {
			err = errors.New("the BMC has only accepted the request")
		}
		return errors.Join(err, res.Body.Close())
	})
}

// account returns the account of the user that is logged in.
func (p *redfish) account() (*fish.ManagerAccount, error) {
	service, err := p.reader.Service.AccountService()
	if err != nil {
		return nil, err
	}
	all, err := service.Accounts()
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		if a.UserName == p.bmc.User {
			return a, nil
		}
	}
	return nil, fmt.Errorf("the BMC lists no account of user %q: correct bmc.user, or change the password at the BMC", p.bmc.User)
}
