package action

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseHandler(t *testing.T) {
	for _, c := range []struct {
		words []string
		want  Handler
	}{
		{nil, Handler{}},
		{[]string{"echo", "it", "failed"}, Handler{Noop, map[string]string{"LOG": "it failed"}}},
		{[]string{"echo"}, Handler{Noop, map[string]string{"LOG": ""}}},
		{[]string{"wipe"}, Handler{Wipe, map[string]string{}}},
		{
			[]string{"quay.io/tinkerbell/actions/writefile:v1", "DEST_PATH=/x", "CONTENTS=a=b c"},
			Handler{WriteFile, map[string]string{"DEST_PATH": "/x", "CONTENTS": "a=b c"}},
		},
	} {
		got, err := ParseHandler(c.words)
		require.NoError(t, err, c.words)
		require.Equal(t, c.want, got)
	}
}

// S23: a handler names one of the agent's own actions, and no program.
func TestParseHandlerRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		words []string
		want  []string
	}{
		"a program":         {[]string{"sh", "-c", "true"}, []string{`invalid "sh"; must be echo and a text, or one of these actions`, "writefile"}},
		"a look-alike":      {[]string{"example.org/other/wipe"}, []string{`invalid "example.org/other/wipe"`}},
		"no name":           {[]string{""}, []string{`invalid ""`}},
		"a leaving action":  {[]string{"reboot"}, []string{`reading "reboot": this action is not allowed after a failure; must be one of`}},
		"a wrapped one":     {[]string{"waitdaemon", "IMAGE=reboot"}, []string{"is not allowed after a failure"}},
		"one of the server": {[]string{"configdrive"}, []string{"is not allowed after a failure"}},
		"a layer":           {[]string{"oci2disk", "IMG_URL=x/y:z"}, []string{"is not allowed after a failure"}},
		"an image":          {[]string{"image2disk", "IMG_URL=http://x/y"}, []string{"is not allowed after a failure"}},
		"all errors": {
			[]string{"writefile", "DEST_PATH", "COLOUR=hidden", "MODE=0600", "MODE=0600"},
			[]string{"invalid variable 1; must be NAME=VALUE", "reading COLOUR: writefile has no such variable", "reading MODE: it is given twice"},
		},
		"its environment": {[]string{"wipe", "WIPE_MODE=hidden"}, []string{"WIPE_MODE"}},
		"a missing one":   {[]string{"writefile", "CONTENTS=hidden"}, []string{"DEST_PATH"}},
		"too many":        {append([]string{"echo"}, strings.Fields(strings.Repeat("a ", 64))...), []string{"65 words; at most 64"}},
	} {
		_, err := ParseHandler(c.words)
		require.Error(t, err, name)
		for _, text := range c.want {
			require.ErrorContains(t, err, text, name)
		}
		if name == "all errors" {
			require.NotContains(t, err.Error(), "hidden", name)
		}
	}
}

// What the plan, the store and the workflow ask of an action counts its handlers.
func TestHandlersCount(t *testing.T) {
	plain := Action{Image: Noop, Timeout: 10}
	require.False(t, plain.NeedsDisk() || plain.WritesAny())
	require.Equal(t, Seconds(10), plain.Longest())

	for _, words := range [][]string{{"wipe"}, {"wipe", "ALL_DISKS=true"}, {"echo", "x"}, {"sh"}} {
		failing, late := plain, plain
		failing.OnFailure, late.OnTimeout = words, words
		for _, a := range []Action{failing, late} {
			require.Equal(t, len(words) == 1 && words[0] == "wipe", a.NeedsDisk(), words)
			require.Equal(t, words[0] == "wipe", a.WritesAny(), words)
			want := Seconds(10) + HandlerTime
			if words[0] == "sh" { // a plan of an earlier server: it is not carried out
				want = 10
			}
			require.Equal(t, want, a.Longest(), words)
		}
	}
}

// S22: what may hold a credential is in the list of what commands do not get.
func TestCredentialsAreListed(t *testing.T) {
	holds := regexp.MustCompile(`URL|USER|PASSWORD|TOKEN|SECRET|KEY`)
	for _, name := range Natives() {
		for _, v := range Describe(name).Variables {
			if holds.MatchString(v.Name) && v.Name != "USER_DATA" {
				require.Contains(t, Credentials, v.Name, name)
			}
		}
	}
}

// Every action that may follow a failure needs nothing from the server.
func TestHandlersLeaveNothingToTheServer(t *testing.T) {
	require.Contains(t, Handlers(), WriteFile)
	for _, name := range Handlers() {
		require.False(t, Leaves(name), name)
		require.Empty(t, Describe(name).Adds, name)
		require.False(t, Describe(name).Whole, name)
	}
}

// TestS59HandlersSendNoDisk: the plan checks the addresses of actions, so that a handler sends no disk.
func TestS59HandlersSendNoDisk(t *testing.T) {
	for _, image := range []string{Slurp, "quay.io/tinkerbell/actions/slurp:latest"} {
		_, err := ParseHandler([]string{image, UploadURLVariable + "=http://store.example/", UploadNameVariable + "=x"})
		require.ErrorContains(t, err, "is not allowed after a failure")
	}
	require.NotContains(t, Handlers(), Slurp)
}
