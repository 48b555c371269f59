package inventory

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMachinesOfMap(t *testing.T) {
	all := []Machine{
		{Name: "server", Interfaces: []Interface{{MAC: "02:00:00:00:00:a1"}, {MAC: "02:00:00:00:00:a2"}}},
		{Name: "client", Interfaces: []Interface{{MAC: "02:00:00:00:00:b1"}}},
		{Name: "other"},
	}
	for name, c := range map[string]struct {
		devices map[string]string
		want    []string
		wrong   string
	}{
		"names, sorted":            {devices: map[string]string{"device_1": "server", "device_2": "client"}, want: []string{"client", "server"}},
		"a MAC of any interface":   {devices: map[string]string{"device_1": "02:00:00:00:00:a2", "device_2": "client"}, want: []string{"client", "server"}},
		"another notation":         {devices: map[string]string{"device_1": "02-00-00-00-00-A1", "device_2": "02:00:00:00:00:B1"}, want: []string{"client", "server"}},
		"any number":               {devices: map[string]string{"device_7": "other", "device_10": "server"}, want: []string{"other", "server"}},
		"other values":             {devices: map[string]string{"device_1": "server", "device_2": "client", "device_01": "no", "device_0": "no", "device_x": "no", "my_device_3": "no", "disk": "other"}, want: []string{"client", "server"}},
		"the same by name and MAC": {devices: map[string]string{"device_1": "server", "device_2": "02-00-00-00-00-a2", "device_3": "client"}, wrong: `hardwareMap.device_2: "02-00-00-00-00-a2" is machine "server", which device_1 names already`},
		"the same by two MACs":     {devices: map[string]string{"device_1": "02:00:00:00:00:a1", "device_2": "02:00:00:00:00:a2"}, wrong: `which device_1 names already`},
		"unknown":                  {devices: map[string]string{"device_1": "server", "device_2": "client", "device_3": "nobody"}, wrong: `hardwareMap.device_3: "nobody" is neither the name of a machine nor the MAC address of an interface`},
		"empty":                    {devices: map[string]string{"device_1": "server", "device_2": "client", "device_3": ""}, wrong: `hardwareMap.device_3: "" is neither`},
		"one":                      {devices: map[string]string{"device_1": "server", "disk": "client"}, wrong: "hardwareMap: names 1 machines, but at least two are needed"},
		"none":                     {wrong: "hardwareMap: names 0 machines"},
	} {
		t.Run(name, func(t *testing.T) {
			machines, err := MachinesOfMap(all, c.devices)
			if c.wrong != "" {
				require.ErrorIs(t, err, ErrInvalid)
				require.ErrorContains(t, err, c.wrong)
				return
			}
			require.NoError(t, err)
			var names []string
			for _, m := range machines {
				names = append(names, m.Name)
			}
			require.Equal(t, c.want, names)
		})
	}
}

// TestAllProblemsOfAMapAreReported: a mistake does not hide the next one, and no further problem is made up.
func TestAllProblemsOfAMapAreReported(t *testing.T) {
	_, err := MachinesOfMap([]Machine{{Name: "server"}}, map[string]string{"device_1": "x", "device_2": "y", "device_3": "server"})
	var problems Problems
	require.ErrorAs(t, err, &problems)
	require.Len(t, problems, 2)
}
