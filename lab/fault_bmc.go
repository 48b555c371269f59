package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Faults of a BMC that answers. ipmi_sim calls the chassis script for everything about power and
// boot device, and waits until it ends. A fault replaces it with another script, which can call the
// real one as $real.

// Unreachable removes the BMC from the network: requests get no answer.
func (b *BMC) Unreachable(ctx context.Context) (Undo, error) {
	if err := b.Unplug(ctx); err != nil {
		return nil, fmt.Errorf("unplugging the BMC of %q: %w", b.machine.spec.Name, err)
	}
	return b.machine.lab.undoable("BMC of "+b.machine.spec.Name+" unplugged", func() error { return b.Plug(context.Background()) })
}

// Slow delays every question and every order about power and boot device by d.
func (b *BMC) Slow(d time.Duration) (Undo, error) {
	return b.pretend("slow", fmt.Sprintf("sleep %.3f\nexec \"$real\" \"$@\"", d.Seconds()))
}

// Hold makes every question and every order about power and boot device wait for Undo; then they
// are carried out.
func (b *BMC) Hold() (Undo, error) {
	gate := filepath.Join(b.dir(), "held")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		return nil, err
	}
	undo, err := b.pretend(
		"held",
		fmt.Sprintf("while [ -e '%s' ]; do sleep 0.05; done\nexec \"$real\" \"$@\"", strings.ReplaceAll(gate, "'", `'\''`)),
	)
	if err != nil {
		return nil, errors.Join(err, os.Remove(gate))
	}
	return func() error {
		// Remove the fault first: released scripts must find the real script.
		err := undo()
		if e := os.Remove(gate); !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
		return err
	}, nil
}

// Idle makes the BMC answer orders with success without carrying them out. Its answers about its
// state stay true.
func (b *BMC) Idle() (Undo, error) {
	return b.pretend("idle", `[ "$2" = set ] && exit 0`+"\nexec \"$real\" \"$@\"")
}

// Lie makes the BMC report the given power state, whatever the real one is. Orders are carried out.
func (b *BMC) Lie(state PowerState) (Undo, error) {
	n := 0
	if state == On {
		n = 1
	}
	return b.pretend("lying", fmt.Sprintf(`"$real" "$@" | sed 's/^power:.*/power:%d/'`, n))
}

// Broken makes the BMC answer every question and every order with an error.
func (b *BMC) Broken() (Undo, error) { return b.pretend("broken", "exit 1") }

// Refuse changes the BMC's password: it refuses clients that use the earlier one. The BMC is
// restarted, as after a factory reset.
func (b *BMC) Refuse(ctx context.Context) (Undo, error) {
	file := filepath.Join(b.dir(), "lan.conf")
	conf, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	other := bytes.Replace(conf, []byte(`"`+b.Password+`" admin`), []byte(`"not-the-password" admin`), 1)
	if bytes.Equal(conf, other) {
		return nil, fmt.Errorf("changing the password of the BMC of %q: it is not in %s", b.machine.spec.Name, file)
	}
	restart := func(conf []byte) error {
		b.Stop()
		if err := os.WriteFile(file, conf, 0o600); err != nil {
			return err
		}
		err := b.Start(context.Background())
		if errors.Is(err, ErrClosed) {
			return nil // it is not called any more
		}
		return err
	}
	if err := restart(other); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	return b.machine.lab.undoable("BMC of "+b.machine.spec.Name+" refusing", func() error { return restart(conf) })
}

// pretend puts a script in front of the chassis script.
func (b *BMC) pretend(what, body string) (Undo, error) {
	script, real, mark := filepath.Join(b.dir(), "chassis"), filepath.Join(b.dir(), "chassis.real"), filepath.Join(b.dir(), "fault")
	fail := func(err error) (Undo, error) {
		return nil, fmt.Errorf("making the BMC of %q %s: %w", b.machine.spec.Name, what, err)
	}
	f, err := os.OpenFile(mark, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fail(fmt.Errorf("it has a fault already: %w", err))
	}
	// The real script keeps its second name: a script of an undone fault may still be running and
	// call it.
	err = f.Close()
	if e := os.Link(script, real); !errors.Is(e, os.ErrExist) {
		err = errors.Join(err, e)
	}
	text := "#!/bin/sh\nreal='" + strings.ReplaceAll(real, "'", `'\''`) + "'\n" + body + "\n"
	if err == nil {
		err = os.WriteFile(script+".fault", []byte(text), 0o755)
	}
	if err == nil { // replace the file instead of writing to it: the script may be running
		err = os.Rename(script+".fault", script)
	}
	if err != nil {
		return fail(errors.Join(err, os.Remove(mark)))
	}
	return b.machine.lab.undoable("BMC of "+b.machine.spec.Name+" "+what, func() error {
		if _, err := os.Stat(mark); errors.Is(err, os.ErrNotExist) {
			return nil // Close has removed the folder
		}
		return errors.Join(os.Link(real, script+".again"), os.Rename(script+".again", script), os.Remove(mark))
	})
}
