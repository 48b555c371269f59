package bmc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	// maxOutput limits how many bytes of a command's output are kept.
	maxOutput = 64 << 10
	// powerTime limits one run of a program if the configuration sets no timeout.
	powerTime = 30 * time.Second
)

// CheckCommand returns inventory.ErrInvalid if the configuration has no command with this name.
func (d *Driver) CheckCommand(name string) error {
	if _, ok := d.cfg.Commands[name]; !ok {
		return fmt.Errorf("the server's configuration has no command %q under power.commands: %w", name, inventory.ErrInvalid)
	}
	return nil
}

// command is a provider that runs programs of the administrator.
type command struct {
	link
	processes *processes
	cmd       Command
	bmc       inventory.BMC
	password  inventory.Secret
}

var _ provider = (*command)(nil)

func newCommand(d *Driver, l link, _ string, b inventory.BMC, password inventory.Secret) (provider, error) {
	if err := d.CheckCommand(b.Command); err != nil {
		return nil, err
	}
	if strings.ContainsAny(password.Reveal(), "\n\r\x00") {
		return nil, fmt.Errorf("the BMC's password contains a line break or NUL, but the programs of power.commands read one line: %w",
			inventory.ErrInvalid)
	}
	c := d.cfg.Commands[b.Command]
	if c.Timeout <= 0 {
		c.Timeout = powerTime
	}
	return &command{link: l, processes: d.processes, cmd: c, bmc: b, password: password}, nil
}

// close does nothing, because no program runs when a command has returned.
func (*command) close(context.Context) error { return nil }

// readPower returns the last line that the status program prints.
func (p *command) readPower(ctx context.Context) (string, error) {
	out, err := p.run(ctx, "status", p.cmd.Status)
	if err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1], nil
}

// setPower runs the program On if power is "on", otherwise the program Off.
func (p *command) setPower(ctx context.Context, power string) error {
	argv := p.cmd.Off
	if power == "on" {
		argv = p.cmd.On
	}
	_, err := p.run(ctx, power, argv)
	return err
}

// run runs one program and returns its standard output. what is the name of the program in errors.
func (p *command) run(ctx context.Context, what string, argv []string) (out string, err error) {
	err = p.do(ctx, func() error {
		out, err = p.exec(ctx, what, argv)
		return err
	})
	return out, err
}

func (p *command) exec(ctx context.Context, what string, argv []string) (string, error) {
	filled := make([]string, len(argv))
	for n, a := range argv {
		if strings.Contains(a, "{host}") && p.bmc.Host == "" {
			return "", fmt.Errorf("argument %q of the command needs bmc.host, but the machine's document does not set it: %w", a,
				inventory.ErrInvalid)
		}
		filled[n] = strings.NewReplacer("{machine}", p.bmc.Machine, "{host}", p.bmc.Host).Replace(a)
	}

	leave, err := p.processes.enter(ctx)
	if err != nil {
		return "", err
	}
	defer leave()
	limited, cancel := context.WithTimeout(ctx, p.cmd.Timeout)
	defer cancel()
	cmd := exec.CommandContext(limited, filled[0], filled[1:]...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	if text := p.password.Reveal(); text != "" {
		cmd.Stdin = strings.NewReader(text + "\n")
	}

	out := &head{left: maxOutput}
	cmd.Stdout, cmd.Stderr = out, io.Discard

	// On timeout, also kill the processes that the program has started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	err = p.processes.run(cmd)
	var exit *exec.ExitError

	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case limited.Err() != nil:
		return "", fmt.Errorf("the program for %s took longer than %s: %w", what, p.cmd.Timeout, inventory.ErrUnreachable)
	case errors.As(err, &exit):
		return "", fmt.Errorf("the program for %s ended with %s; run it by hand to see its output: %w", what, exit.ProcessState,
			inventory.ErrUnreachable)
	case err != nil && !errors.Is(err, exec.ErrWaitDelay): // ErrWaitDelay: the program succeeded, but left a process running
		return "", fmt.Errorf("starting the program for %s: %w: %w", what, inventory.ErrUnsupported, err)
	}

	return out.text.String(), nil
}

// head is a writer that keeps the first bytes and ignores the rest. left is how many more bytes it keeps.
type head struct {
	text strings.Builder
	left int
}

func (h *head) Write(b []byte) (int, error) {
	keep := b[:min(len(b), h.left)]
	h.left -= len(keep)
	h.text.Write(keep)
	return len(b), nil
}
