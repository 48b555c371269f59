package genesis

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// checks run in this order; each may use what earlier ones have filled in. Each notes every
// problem of its part of the lab file.
var checks = []struct {
	part  string
	check func(*file)
}{
	{"name", (*file).checkName},
	{"seed", (*file).checkSeed},
	{"network", (*file).checkNetwork},
	{"images", (*file).checkImages},
	{"roles of machines", (*file).checkRoles},
	{"migrate", (*file).checkMigrate}, // gives the address from which machines fetch images
	{"machines and their documents", (*file).checkMachines},
	{"router", (*file).checkRouter},
	{"platform", (*file).checkPlatform},
	{"migrate.address", (*file).checkTarget},
	{"cluster", (*file).checkCluster},
	{"network.range", (*file).checkRange},
	{"budgets", (*file).checkBudgets},
}

// check fills in defaults and notes every problem.
func (f *file) check() {
	for _, c := range checks {
		c.check(f)
	}
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func (f *file) checkName() {
	if !dnsLabel.MatchString(f.lab.Name) {
		f.add("name", "use up to 63 of a–z, 0–9 and -, beginning and ending with a letter or digit",
			"invalid DNS label %q", f.lab.Name)
	}
}

func (f *file) checkBudgets() {
	names := f.lab.stepNames()
	for _, k := range slices.Sorted(maps.Keys(f.lab.Budgets)) {
		if !slices.Contains(names, k) {
			f.add("budgets."+k, "the steps are "+strings.Join(names, ", "), "unknown step %q", k)
		} else if f.lab.Budgets[k] <= 0 {
			f.add("budgets."+k, "give for example 30m", "invalid time %s", f.lab.Budgets[k])
		}
	}
}
