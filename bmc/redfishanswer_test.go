package bmc

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/common"
	fish "github.com/stmcginnis/gofish/redfish"
	"github.com/stretchr/testify/require"
)

// TestUsedPart: a property that Ingot uses is read from the types that services give it. What cannot be read is
// no state that Ingot waits for.
func TestUsedPart(t *testing.T) {
	for given, want := range map[string]string{
		`{"@odata.id":"/a"}`: `{"@odata.id":"/a"}`,
		`{}`:                 `{"@odata.id":"/here"}`,
		`{"@odata.id":7}`:    `{"@odata.id":"/here"}`,
		`{"@odata.id":"/a","AssetTag":77,"OperatingSystem":{"@odata.id":"/b"},"ProcessorSummary":{"Count":"2"}}`: `{"@odata.id":"/a"}`,
		`{"@odata.id":"/a","Id":1,"Model":null,"BiosVersion":2.10,"PowerState":true}`:                            `{"@odata.id":"/a","BiosVersion":"2.10","Id":"1","PowerState":"true"}`,
		`{"@odata.id":"/a","Inserted":"True","MediaTypes":"CD"}`:                                                 `{"@odata.id":"/a","Inserted":true,"MediaTypes":["CD"]}`,
		`{"@odata.id":"/a","Inserted":0}`:                                                                        `{"@odata.id":"/a","Inserted":false}`,
		`{"@odata.id":"/a","Inserted":[1]}`:                                                                      `{"@odata.id":"/a","Inserted":[1]}`,
		`{"@odata.id":"/a","Members":[{"@odata.id":"/b","Id":3},"/c",{"href":"/d"},null,4]}`:                     `{"@odata.id":"/a","Members":[{"@odata.id":"/b"},{"@odata.id":"/c"},{"@odata.id":"/d"}]}`,
		`{"@odata.id":"/a","Actions":{"#Manager.Reset":{"target":"/b","ResetType@Redfish.AllowableValues":"On","title":4}}}`: `{"@odata.id":"/a",` +
			`"Actions":{"#Manager.Reset":{"ResetType@Redfish.AllowableValues":["On"],"target":"/b"}}}`,
		`{"@odata.id":"/a","Boot":{"BootSourceOverrideTarget":"Pxe","BootOrder":"x"}}`: `{"@odata.id":"/a","Boot":{"BootSourceOverrideTarget":"Pxe"}}`,
		`{"@odata.id":"/a","Boot":[1]}`: `{"@odata.id":"/a","Boot":{"BootSourceOverrideEnabled":"{\"unknown\":[1]}",` +
			`"BootSourceOverrideMode":"{\"unknown\":[1]}","BootSourceOverrideTarget":"{\"unknown\":[1]}"}}`,
		`{"@odata.id":"/a","Temperatures":[{"ReadingCelsius":"24.5"},{"ReadingCelsius":"hot"}],"Fans":[{"Reading":4200.4}]}`: `{"@odata.id":"/a",` +
			`"Fans":[{"Reading":4200}],"Temperatures":[{"ReadingCelsius":24.5},{}]}`,
		`[]`: ``, `null`: ``, `no JSON`: ``, ``: ``,
	} {
		used, _ := usedPart([]byte(given), "/here")
		if want == "" {
			require.Nil(t, used, given)
			continue
		}
		require.JSONEq(t, want, toJSON(t, used), given)
	}
}

// TestUsedPartOfRealMachines: gofish reads the same of the answers of real machines, which bmclib has, as of
// their used parts.
func TestUsedPartOfRealMachines(t *testing.T) {
	kinds := map[string]struct {
		empty any
		used  []string
	}{
		"#ServiceRoot": {gofish.Service{}, []string{
			"ODataID", "systems", "managers", "chassis", "sessionService", "accountService", "sessions", "RedfishVersion",
		}},
		"#ComputerSystem": {fish.ComputerSystem{}, []string{
			"ODataID", "ID", "Name", "Manufacturer", "Model", "BIOSVersion", "PowerState", "SupportedResetTypes", "resetTarget",
			"secureBoot", "virtualMedia", "Boot.BootSourceOverrideEnabled", "Boot.BootSourceOverrideMode", "Boot.BootSourceOverrideTarget",
		}},
		"#Manager": {fish.Manager{}, []string{
			"ODataID", "FirmwareVersion", "LastResetTime", "virtualMedia", "SupportedResetTypes", "resetTarget", "actionInfo",
			"managerForServers",
		}},
		"#VirtualMedia": {fish.VirtualMedia{}, []string{
			"ODataID", "Image", "Inserted", "MediaTypes", "ejectMediaTarget", "insertMediaTarget",
		}},
		"Collection": {common.Collection{}, []string{"ItemLinks", "MembersNextLink"}},
	}
	found := map[string]int{}
	for path, body := range realAnswers(t) {
		var typed struct {
			Type string `json:"@odata.type"`
		}
		if json.Unmarshal(body, &typed) != nil {
			continue // a list, or no JSON
		}
		kind, _, _ := strings.Cut(typed.Type, ".")
		if strings.HasSuffix(kind, "Collection") {
			kind = "Collection"
		}
		k, ok := kinds[kind]
		if !ok {
			continue
		}
		found[kind]++
		whole, used := reflect.New(reflect.TypeOf(k.empty)), reflect.New(reflect.TypeOf(k.empty))
		require.NoError(t, json.Unmarshal(body, whole.Interface()), path)
		part, _ := usedPart(body, "")
		require.NoError(t, json.Unmarshal([]byte(toJSON(t, part)), used.Interface()), path)
		for _, name := range k.used {
			a, b := whole.Elem(), used.Elem()
			for part := range strings.SplitSeq(name, ".") {
				a, b = a.FieldByName(part), b.FieldByName(part)
			}
			require.Equal(t, fmt.Sprint(a), fmt.Sprint(b), "%s: %s", path, name)
		}
	}
	require.Len(t, found, len(kinds), found)
}

func toJSON(t *testing.T, value any) string {
	t.Helper()
	out, err := json.Marshal(value)
	require.NoError(t, err)
	return string(out)
}

// realAnswers returns the answers of real machines that bmclib's module has, by file.
func realAnswers(t *testing.T) map[string][]byte {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/bmc-toolbox/bmclib/v2").Output()
	require.NoError(t, err)
	root := strings.TrimSpace(string(dir))
	out := map[string][]byte{}
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".json") && strings.Contains(path, "fixtures") {
			out[path], err = os.ReadFile(path)
		}
		return err
	}))
	require.NotEmpty(t, out)
	return out
}
