package activities

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// A run that was planned before the site moved fetches its images where the
// site is now; what lies elsewhere stays where it is.
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
		a := &Activities{Machines: s, Assignments: s, Site: Site{ClaimKey: make([]byte, 32), ImageURL: func() string { return at }}, Now: time.Now}
		for n := range s.plan.Actions {
			require.NoError(t, a.Assign(t.Context(), AssignRequest{Owner: inventory.Owner{Machine: "m1", Run: "r1", Epoch: 1}, Boot: 1, Key: action.Key{Epoch: 1, Action: n, Attempt: 1}}))
		}
		x := s.assigned[0].Payload.Action
		require.Equal(t, map[string]string{"IMG_URL": at + "/debian-12", "OTHER": "http://192.0.2.9/images/debian-12"}, x.Environment)
		require.Equal(t, []string{"--from", at + "/a"}, x.Command)
		require.Equal(t, then+"/debian-12", s.plan.Actions[0].Environment["IMG_URL"], "the plan is as it was approved")
		require.Nil(t, s.assigned[1].Payload.Action.Environment)
	}
}

func TestEffectsUnderWay(t *testing.T) {
	var e Effects
	require.Empty(t, e.UnderWay())
	for _, name := range []string{"PowerOn", "PowerOn", "AwaitHandOver", "Assign"} {
		e.count(name, 1)
	}
	require.Equal(t, []string{"Assign", "PowerOn"}, e.UnderWay())
	e.count("PowerOn", -1)
	e.count("Assign", -1)
	e.count("AwaitHandOver", -1)
	require.Equal(t, []string{"PowerOn"}, e.UnderWay())
	e.count("PowerOn", -1)
	require.Empty(t, e.UnderWay())
}
