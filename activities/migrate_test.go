package activities

import (
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// A run that was planned before the site moved fetches its images from the site's new place;
// images elsewhere stay there.
func TestImagesAfterAMove(t *testing.T) {
	const then, now = "http://192.0.2.1/images", "http://198.51.100.1:7080/images"
	for _, at := range []string{then, now} {
		s := &planned{plan: inventory.Plan{Run: "r1", ImagesURL: then, Actions: []action.Action{
			{
				Name: "write", Image: "image2disk", Timeout: 60, Command: []string{"--from", then + "/a"},
				Environment: map[string]string{"IMG_URL": then + "/debian-12", "OTHER": "http://192.0.2.9/images/debian-12"},
			},
			{Name: "noop", Image: "noop", Timeout: 60},
		}}}
		a := New(Config{
			Store:  storeOf(s),
			Site:   Site{ClaimKey: make([]byte, 32), ImageURL: func() string { return at }},
			Clocks: Clocks{Now: time.Now},
		})
		for n := range s.plan.Actions {
			require.NoError(
				t,
				a.Assign(
					t.Context(),
					AssignRequest{Owner: inventory.Owner{Machine: "m1", Run: "r1", Epoch: 1}, Boot: 1, Key: action.Key{Epoch: 1, Action: n, Attempt: 1}},
				),
			)
		}
		x := s.assigned[0].Payload.Action
		require.Equal(t, action.Environment{"IMG_URL": at + "/debian-12", "OTHER": "http://192.0.2.9/images/debian-12"}, x.Environment)
		require.Equal(t, []string{"--from", at + "/a"}, x.Command)
		require.Equal(t, then+"/debian-12", s.plan.Actions[0].Environment["IMG_URL"], "the plan is as it was approved")
		require.Nil(t, s.assigned[1].Payload.Action.Environment)
	}
}

func TestEffectsUnderWay(t *testing.T) {
	var e UnderWay
	require.Empty(t, e.Effects())
	attempt := func(activity, name string) Attempt { return Attempt{Activity: activity, Type: name, Number: 1} }
	first, second := attempt("1", "PowerOn"), attempt("2", "PowerOn")
	waits, assign := attempt("3", "AwaitHandOver"), attempt("4", "Assign")
	for _, a := range []Attempt{first, second, waits, assign} {
		e.count(a, 1)
	}
	require.True(t, e.Has(waits))
	require.Equal(t, []string{"Assign", "PowerOn"}, e.Effects())
	e.count(first, -1)
	e.count(assign, -1)
	e.count(waits, -1)
	require.False(t, e.Has(first))
	require.Equal(t, []string{"PowerOn"}, e.Effects())
	e.count(second, -1)
	require.Empty(t, e.Effects())
}

// openOperations are those under way.
type openOperations struct {
	*records
	open []inventory.Operation
}

func (l openOperations) Operations(_ context.Context, f inventory.OperationFilter) (out []inventory.Operation, err error) {
	for _, o := range l.open {
		if f.Open && (f.Type == "" || o.Type == f.Type) {
			out = append(out, o)
		}
	}
	return out, nil
}

// A Genesis and a migration exclude each other, except for the migration that is a step of
// the Genesis.
func TestAGenesisAndAMigrationAtATime(t *testing.T) {
	operation := func(typ, id, name, input string) inventory.Operation {
		return inventory.Operation{Type: typ, ID: id, Name: name, Run: "run of " + id, Input: []byte(input)}
	}
	genesis := operation(inventory.TypeGenesis, "genesis/home", "home", `{"name":"home"}`)
	other := operation(inventory.TypeGenesis, "genesis/other", "other", `{"name":"other"}`)
	child := operation(inventory.TypeMigrate, "migrate/platform", "platform", `{"name":"platform","target":"platform","genesis":"home"}`)
	operators := operation(inventory.TypeMigrate, "migrate/platform", "platform", `{"name":"platform","target":"platform"}`)
	elsewhere := operation(inventory.TypeMigrate, "migrate/nas", "nas", `{"name":"nas","target":"nas","genesis":"home"}`)
	for name, c := range map[string]struct {
		open             []inventory.Operation
		migrate, genesis string // what migrate/platform, and genesis/home, are told
	}{
		"a step of the Genesis":          {[]inventory.Operation{genesis, child}, "", ""},
		"a Genesis, and an operator's":   {[]inventory.Operation{genesis, operators}, "genesis/home is already running", "migrate/platform is under way"},
		"a step, and another Genesis":    {[]inventory.Operation{genesis, child, other}, "genesis/other is already running", "genesis/other is under way"},
		"two migrations":                 {[]inventory.Operation{child, elsewhere}, "migrate/nas is already running", "migrate/nas is under way"},
		"a migration that no one reads":  {[]inventory.Operation{operation(inventory.TypeMigrate, "migrate/platform", "platform", "")}, "reading the input of migrate/platform", "reading the input of migrate/platform"},
		"a migration, and no Genesis":    {[]inventory.Operation{operators}, "", "migrate/platform is under way"},
		"of an earlier run of this name": {[]inventory.Operation{child}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := &platformFake{answers: func(int) error { return nil }}
			a := New(Config{Store: storeOf(openOperations{&records{storeGenesis: newLabShelf(t)}, c.open}), Move: Move{Mover: p}})
			told := func(want string, err error) {
				t.Helper()
				if want == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, want)
			}
			told(c.migrate, a.CheckTarget(t.Context(), MigrateRequest{Target: "platform", ID: "migrate/platform"}))
			require.Equal(t, c.migrate == "", p.asked == 1, "the target is asked after that")
			_, err := a.ReadLab(t.Context(), LabRequest{Name: "home", Run: genesis.Run})
			told(c.genesis, err)
		})
	}
}

// TestRelaySwitch lists the target next to the server, which comes first, then
// leaves it alone there; or takes its line away again.
func TestRelaySwitch(t *testing.T) {
	const seed, target = "192.168.1.10", "10.10.20.11"
	q := RelaySwitchRequest{Genesis: "home", Target: "platform"}
	listed, retired := q, q
	listed.Listed, retired.Source = true, true
	r := &relayRouter{servers: []string{seed}}
	shelf := newLabShelf(t)
	a := New(Config{Store: storeOf(shelf), Systems: Systems{Routers: r}})
	switches := func(q RelaySwitchRequest, want ...string) {
		t.Helper()
		for range 2 { // it may be carried out again
			there, err := a.RelaySwitch(t.Context(), q)
			require.NoError(t, err)
			require.True(t, there)
			require.Equal(t, want, r.servers)
		}
	}
	switches(q, seed) // undone before it was done
	switches(listed, seed, target)
	switches(q, seed)
	switches(listed, seed, target)
	switches(retired, target)
	require.Equal(t, 4, r.changes)
	_, err := a.RelaySwitch(t.Context(), q)
	require.Equal(t, TypeConflict, typeOf(t, err), "no one would be answered")

	back := listed
	back.Target = "nas"
	_, err = a.RelaySwitch(t.Context(), back)
	require.ErrorContains(t, err, "start the migration without the lab")
	require.Equal(t, []string{target}, r.servers)

	file := shelf.bundle.Files[shelf.bundle.File].Reveal()
	shelf.bundle.Files[shelf.bundle.File] = inventory.NewSecret(regexp.MustCompile(`(?m)^migrate:.*\n( .*\n)+`).ReplaceAllString(file, ""))
	there, err := a.RelaySwitch(t.Context(), listed)
	require.NoError(t, err)
	require.False(t, there, "a lab that does not move has no relay to switch")
	require.Equal(t, []string{target}, r.servers)
}
