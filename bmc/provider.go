package bmc

import (
	"context"

	"github.com/ingotmetal/ingot/inventory"
)

// provider controls the power of one machine during one operation. Further capabilities of a driver are methods of the
// optional interfaces below.
type provider interface {
	// readPower returns the power state in the BMC's own words; normalize converts it.
	readPower(ctx context.Context) (string, error)
	// setPower requests one change of the power state: on, off, soft or reset.
	setPower(ctx context.Context, power string) error
	// close ends the sessions and connections that the commands have opened.
	close(ctx context.Context) error
}

// bootChooser is a provider that can set and read the boot device.
type bootChooser interface {
	setBootDevice(ctx context.Context, want inventory.BootDevice) error
	// readBootDevice returns the device none if no device is set, and a blindError if the device cannot be read.
	readBootDevice(ctx context.Context) (inventory.BootDevice, error)
}

// flagReader is a bootChooser that can also read the flags of the boot device.
type flagReader interface {
	// hasValidFlags reports whether the flags that were last read are marked as valid.
	hasValidFlags() bool
}

// flagKeeper is a provider whose BMC may forget the boot device unless keepBootFlags is called first.
type flagKeeper interface {
	keepBootFlags(ctx context.Context) error
}

// pendingReader is a bootChooser whose BMC may hold another boot device for a later start.
type pendingReader interface {
	// describePending describes the boot device for a later start. "" = there is none, or it is want.
	describePending(want string) string
}

// selfTester is a provider that can check whether a boot device would have an effect.
type selfTester interface {
	ready(ctx context.Context) error
}

// inspector is a provider that can add further data to a report.
type inspector interface {
	inspect(ctx context.Context, r *inventory.BMCReport) error
}

// resetter is a provider that can restart the BMC.
type resetter interface {
	resetBMC(ctx context.Context) error
}

// resetWitness is a provider whose BMC may report the time of its last reset.
type resetWitness interface {
	lastReset(ctx context.Context) (at string, err error) // "" = it is not reported
}

// mediaDrives is a provider for a BMC with virtual CD drives.
type mediaDrives interface {
	// media returns the URLs of the inserted media. A medium without a URL is "unknown".
	media(ctx context.Context) (inserted []string, err error)
	// insert ejects all media and then inserts the image at url.
	insert(ctx context.Context, url string) error
	// eject ejects the medium at url, or all media if url is empty.
	eject(ctx context.Context, url string) error
}

// passwordSetter is a provider that can change the password of the logged-in user.
type passwordSetter interface {
	setPassword(ctx context.Context, next inventory.Secret) error
}

// fencedProvider is a provider whose commands write several times. guard sets the function that it must call
// immediately before each write; nil = none.
type fencedProvider interface {
	guard(fence func(context.Context) error)
}

// link is what all commands of one operation share.
type link struct {
	target *target
	// admit is called before each command (of Redfish: before each log-in), and settle afterwards with the command's
	// error.
	admit  func(context.Context) error
	settle func(error)
}

// do calls admit, command and settle. It returns the command's error, or the error of admit.
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
