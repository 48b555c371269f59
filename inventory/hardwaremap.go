package inventory

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// DeviceKey matches the keys of a hardware map that name machines.
var DeviceKey = regexp.MustCompile(`^device_[1-9][0-9]*$`)

// MachinesOfMap returns the machines that the keys device_N of a hardware map name, sorted by name. Each value must be the name of
// one of the machines in all, or the MAC address of one of its interfaces. At least two machines are needed, and each may be named
// only once; the error is a Problems.
func MachinesOfMap(all []Machine, hardwareMap map[string]string) ([]Machine, error) {
	var problems Problems
	var out []Machine
	named := map[string]string{} // key: name of a machine; value: its key in the map
	for _, k := range slices.Sorted(maps.Keys(hardwareMap)) {
		if !DeviceKey.MatchString(k) {
			continue
		}
		n := slices.IndexFunc(all, func(m Machine) bool { return m.IsWorker(hardwareMap[k]) })
		if n < 0 {
			problems.Add("hardwareMap."+k, "ingot machine list", "%q is neither the name of a machine nor the MAC address of an interface",
				hardwareMap[k])
			continue
		}
		if earlier, twice := named[all[n].Name]; twice {
			problems.Add(
				"hardwareMap."+k,
				"name each machine once",
				"%q is machine %q, which %s names already",
				hardwareMap[k],
				all[n].Name,
				earlier,
			)
			continue
		}
		named[all[n].Name] = k
		out = append(out, all[n])
	}
	if len(problems) == 0 && len(out) < 2 {
		problems.Add("hardwareMap", "give device_1 and device_2; for one machine: ingot machine provision",
			"names %d machines, but at least two are needed", len(out))
	}
	slices.SortFunc(out, func(a, b Machine) int { return strings.Compare(a.Name, b.Name) })
	return out, problems.Err()
}
