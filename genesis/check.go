package genesis

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// checks are called in this order. Each check handles one part of the lab file, and reports all problems of this part.
// It may fill in defaults, which later checks use.
var checks = []struct {
	part  string
	check func(*file)
}{
	{"name", (*file).checkName},
	{"seed", (*file).checkSeed},
	{"network", (*file).checkNetwork},
	{"images", (*file).checkImages},
	{"roles of machines", (*file).checkRoles},
	{"migrate", (*file).checkMigrate}, // sets, for the documents, the address from which machines fetch images
	{"machines and their documents", (*file).checkMachines},
	{"router", (*file).checkRouter},
	{"platform", (*file).checkPlatform},
	{"migrate.address", (*file).checkTarget},
	{"cluster", (*file).checkCluster},
	{"network.range", (*file).checkRange},
	{"budgets", (*file).checkBudgets},
}

// check fills in defaults and adds all problems of the lab file to f.
func (f *file) check() {
	for _, c := range checks {
		c.check(f)
	}
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func (f *file) checkName() {
	if !dnsLabel.MatchString(f.lab.Name) {
		f.add("name", "use up to 63 characters: a–z, 0–9 and -, beginning and ending with a letter or digit",
			"invalid DNS label %q", f.lab.Name)
	}
}

func (f *file) checkBudgets() {
	names := f.lab.stepNames()
	for _, k := range slices.Sorted(maps.Keys(f.lab.Budgets)) {
		if !slices.Contains(names, k) {
			f.add("budgets."+k, "the steps are "+strings.Join(names, ", "), "unknown step %q", k)
		} else if f.lab.Budgets[k] <= 0 {
			f.add("budgets."+k, "give a duration above 0, such as 30m", "invalid duration %s", f.lab.Budgets[k])
		}
	}
}
