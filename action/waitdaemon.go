package action

import (
	"fmt"
	"slices"
	"strings"
)

// Variables of waitdaemon.
const (
	InnerImageVariable = "IMAGE" // the action that waitdaemon starts
	waitVariable       = "WAIT_SECONDS"
)

// waitDaemonRepository is where waitdaemon alone is published.
const waitDaemonRepository = "jacobweinstock/"

// leaving are the actions that take the machine away from the agent and stand for
// themselves; a test compares them with the rows.
var leaving = []string{Kexec, PowerOff, Reboot}

// waitDaemon starts another action after a while, so that its own success is
// reported before the machine is gone. The agent reports first in any case: the plan has
// the inner action in its place.
var waitDaemon = Description{
	Text: "Stands for the action that `IMAGE` names, which the plan has in its place. The agent reports success before it leaves in any " +
		"case.",
	Leaves: true,
	Variables: []Variable{
		{Name: InnerImageVariable, Text: "one of " + strings.Join(leaving, ", "), Required: true, check: leavingImage},
		{Name: waitVariable, Text: "not needed", check: number},
		{Name: "CONTAINER_RUNTIME", Text: "not needed"},
		{Name: "NERDCTL_NAMESPACE", Text: "not needed"},
		{Name: "NERDCTL_HOST", Text: "not needed"},
	},
	Limits: "The variables of the inner action stand beside these.",
}

func leavingImage(env map[string]string, name string) error {
	inner, _ := splitImage(env[name])
	if env[name] == "" {
		return fmt.Errorf("reading %s: it is missing: give one of %s", name, strings.Join(leaving, ", "))
	}
	if !slices.Contains(leaving, inner) {
		return fmt.Errorf("reading %s=%q: want an action that leaves the agent: one of %s", name, env[name],
			strings.Join(leaving, ", "))
	}
	return nil
}
