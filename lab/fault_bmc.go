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

// The faults of a BMC that answers. ipmi_sim asks the chassis script for everything about power and boot device, and waits for
// its end; a fault is another script in its place, with the real one beside it as $real.

// Unreachable takes the BMC off the network: requests vanish without an answer.
func (b *BMC) Unreachable(ctx context.Context) (Undo, error) {
	if err := b.Unplug(ctx); err != nil {
		return nil, fmt.Errorf("unplugging the BMC of %q: %w", b.machine.spec.Name, err)
	}
	return b.machine.lab.undoable("BMC of "+b.machine.spec.Name+" unplugged", func() error { return b.Plug(context.Background()) })
}

// Slow makes every question and every order about power and boot device take d longer.
func (b *BMC) Slow(d time.Duration) (Undo, error) {
	return b.pretend("slow", fmt.Sprintf("sleep %.3f\nexec \"$real\" \"$@\"", d.Seconds()))
}

// Hold makes every question and every order about power and boot device wait until it is undone; then they are carried out.
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
		// The fault first: who is let go must find the real script.
		err := undo()
		if e := os.Remove(gate); !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
		return err
	}, nil
}

// Idle makes it answer success to orders and carry out none of them. What it says about its state stays true.
func (b *BMC) Idle() (Undo, error) {
	return b.pretend("idle", `[ "$2" = set ] && exit 0`+"\nexec \"$real\" \"$@\"")
}

// Lie makes it say that the power is in the given state, whatever it is. Orders are carried out.
func (b *BMC) Lie(state PowerState) (Undo, error) {
	n := 0
	if state == On {
		n = 1
	}
	return b.pretend("lying", fmt.Sprintf(`"$real" "$@" | sed 's/^power:.*/power:%d/'`, n))
}

// Broken makes it answer every question and every order with an error.
func (b *BMC) Broken() (Undo, error) { return b.pretend("broken", "exit 1") }

// Refuse gives it another password: it refuses clients that use the earlier one. It is restarted, as after a factory reset.
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
			return nil // nobody will ask it again
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
	// The real one keeps its second name for ever: a script of an undone fault may still run and come to it.
	err = f.Close()
	if e := os.Link(script, real); !errors.Is(e, os.ErrExist) {
		err = errors.Join(err, e)
	}
	text := "#!/bin/sh\nreal='" + strings.ReplaceAll(real, "'", `'\''`) + "'\n" + body + "\n"
	if err == nil {
		err = os.WriteFile(script+".fault", []byte(text), 0o755)
	}
	if err == nil { // a script that runs is never written to: another takes its name
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
