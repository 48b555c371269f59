package bmc

import (
	"context"

	"github.com/ingotmetal/ingot/inventory"
)

// provider switches one machine during one operation. What a driver's capabilities include beyond
// the power, its provider offers by the interfaces below.
type provider interface {
	// readPower returns the power state as the BMC writes it, for normalize.
	readPower(ctx context.Context) (string, error)
	// setPower requests one change of the power state: on, off, soft or reset.
	setPower(ctx context.Context, power string) error
	// close ends what the commands have opened at the BMC.
	close(ctx context.Context) error
}

// bootChooser is a provider that can set and read the boot device.
type bootChooser interface {
	setBootDevice(ctx context.Context, want inventory.BootDevice) error
	// readBootDevice returns the device none if no device is set, and a blindError if it cannot be read.
	readBootDevice(ctx context.Context) (inventory.BootDevice, error)
}

// flagReader is a bootChooser that also reads the boot device's flags.
type flagReader interface {
	// hasValidFlags reports whether the flags that were read last are marked as valid.
	hasValidFlags() bool
}

// flagKeeper is a provider whose BMC forgets the boot device unless keepBootFlags
// is called.
type flagKeeper interface {
	keepBootFlags(ctx context.Context) error
}

// pendingReader is a bootChooser whose BMC may hold another boot device for a later start.
type pendingReader interface {
	// describePending describes that boot device if it is not want. "" = there is none.
	describePending(want string) string
}

// selfTester is a provider that can check whether its commands would have an effect.
type selfTester interface {
	ready(ctx context.Context) error
}

// inspector is a provider that can read more of a report.
type inspector interface {
	inspect(ctx context.Context, r *inventory.BMCReport) error
}

// resetter is a provider that can restart the BMC.
type resetter interface {
	resetBMC(ctx context.Context) error
}

// resetWitness is a provider whose BMC may report when it was last reset.
type resetWitness interface {
	lastReset(ctx context.Context) (at string, err error) // "" = it does not report it
}

// mediaDrives is a provider of virtual CD drives.
type mediaDrives interface {
	// media returns the URLs of the media in the drives; a medium without URL is "unknown".
	media(ctx context.Context) (inserted []string, err error)
	// insert ejects all media, and inserts the one at url.
	insert(ctx context.Context, url string) error
	// eject ejects the medium at url, or all media if url is empty.
	eject(ctx context.Context, url string) error
}

// passwordSetter is a provider that can change the password of the user that is logged in.
type passwordSetter interface {
	setPassword(ctx context.Context, next inventory.Secret) error
}

// fencedProvider is a provider whose commands write several times. It calls fence immediately
// before each write; nil means that it need not.
type fencedProvider interface {
	guard(fence func(context.Context) error)
}

// link is what the commands of one operation share.
type link struct {
	target *target
	// admit is called before each command, and settle with its error.
	admit  func(context.Context) error
	settle func(error)
}

// do calls admit, command and settle, and returns the command's error.
func (l *link) do(ctx context.Context, command func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.admit(ctx); err != nil {
		return err
	}
	err := command()
	l.settle(err)
	return err
}
