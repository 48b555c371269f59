package activities

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// sleeper is a site with one machine, which wakes by LAN.
type sleeper struct {
	unused
	BMC
	machine inventory.Machine
	grant   inventory.Grant
	sending error
	steps   []string
	events  []inventory.Event
}

func (s *sleeper) Machine(context.Context, string) (inventory.Machine, error) { return s.machine, nil }

func (s *sleeper) Grant(context.Context, string) (inventory.Grant, error) { return s.grant, nil }

func (s *sleeper) BMCPassword(context.Context, string) (inventory.Secret, error) {
	return inventory.Secret{}, nil
}

func (s *sleeper) AllowBoot(_ context.Context, o inventory.Owner, boot int, _ time.Time) (inventory.Grant, error) {
	s.steps = append(s.steps, "allow")
	s.grant.Owner, s.grant.Boot = o, boot
	return s.grant, nil
}

func (s *sleeper) AppendEvents(_ context.Context, es []inventory.Event) error {
	s.events = append(s.events, es...)
	return nil
}

func (s *sleeper) BMCJob(context.Context, string, string) (inventory.BMCJob, error) {
	return inventory.BMCJob{}, inventory.ErrNotFound
}

func (s *sleeper) PutBMCJob(_ context.Context, j inventory.BMCJob) error {
	s.steps = append(s.steps, j.State+" "+j.Tasks[0].Message)
	return nil
}

func (s *sleeper) Set(ctx context.Context, b inventory.BMC, _ inventory.Secret, power string, fence Fence) error {
	if err := fence(ctx); err != nil {
		return err
	}
	s.steps = append(s.steps, fmt.Sprintf("%s %s at %s", power, b.MAC, b.Broadcast))
	return s.sending
}

func TestPowerWakesByLAN(t *testing.T) {
	o := inventory.Owner{Machine: "node-1", Run: "r", Epoch: 3}
	s := &sleeper{machine: inventory.Machine{
		Name: "node-1", BMC: &inventory.BMC{Driver: inventory.DriverWOL},
		Interfaces: []inventory.Interface{{MAC: "52:54:00:00:00:07"}},
	}}
	a := New(Config{
		Store:  storeOf(s),
		BMC:    s,
		Clocks: Clocks{Now: time.Now},
		Log:    slog.New(slog.DiscardHandler),
	})
	q := PowerRequest{Owner: o, Boot: 1, For: time.Minute}

	done, err := a.Power(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, []string{"allow", "on 52:54:00:00:00:07 at 255.255.255.255"}, s.steps, "what it then asks for is answered")
	require.Contains(t, done.How, "magic packet sent")
	require.Len(t, s.events, 1)
	require.Equal(t, inventory.EventPower, s.events[0].Kind)

	s.sending = inventory.ErrUnreachable
	done, err = a.Power(t.Context(), q)
	require.NoError(t, err, "an operator has a button")
	require.Contains(t, done.How, "press the machine's power button")

	s.sending = fmt.Errorf("x: %w", inventory.ErrFenced)
	_, err = a.Power(t.Context(), q)
	require.Error(t, err)

	has, err := a.HasBMC(t.Context(), "node-1")
	require.NoError(t, err)
	require.False(t, has, "to switch off, an operator is asked")
	require.Error(t, a.PowerOff(t.Context(), o))

	s.sending, s.steps = nil, nil
	require.NoError(t, a.BMCTasks(t.Context(), o, Job("j", []inventory.BMCTask{{Power: "on"}})))
	require.Equal(t, inventory.StateSuccess+" magic packet sent; nothing shows whether the machine woke", s.steps[len(s.steps)-1])

	s.machine.BMC, s.steps = nil, nil
	done, err = a.Power(t.Context(), q)
	require.NoError(t, err)
	require.Zero(t, done)
	require.Equal(t, []string{"allow"}, s.steps)
}

// TestOtherPathOnlyWhereItCanBeChosen: what is said of a start is what was done.
func TestOtherPathOnlyWhereItCanBeChosen(t *testing.T) {
	a := New(Config{})
	for driver, efi := range map[string]bool{inventory.DriverIPMI: true, inventory.DriverAMT: false, inventory.DriverExec: false} {
		pxe := inventory.BootDevice{Device: "pxe"}
		how, err := a.prepare(
			t.Context(),
			inventory.Machine{BMC: &inventory.BMC{Driver: driver}},
			PowerRequest{OtherPath: true},
			&pxe,
		)
		require.NoError(t, err)
		require.Equal(t, efi, pxe.EFI, driver)
		require.Len(t, how, 1)
		require.Equal(t, efi, how[0] == "boot path changed to UEFI", how)
	}
}
