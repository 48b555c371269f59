package inventory

import "testing"

// Another installer chooses its own init: Ingot's agent does not run there.
func TestInstallerMayChooseItsInit(t *testing.T) {
	for parameter, want := range map[string][2]bool{ // refused for the agent's kernel, and for an installer's
		"init=/nix/store/x/init": {true, false},
		"rdinit=/sbin/init":      {true, false},
		"initrd=x":               {true, true},
		"ingot.claim=0":          {true, true},
		"a b":                    {true, true},
		"acpi_osi=!":             {false, false},
	} {
		if got := [2]bool{ParameterProblem(parameter) != "", InstallerParameterProblem(parameter) != ""}; got != want {
			t.Errorf("%s is refused %v, want %v", parameter, got, want)
		}
	}
}
