package lab

import (
	"maps"
	"net/http"
	"strconv"
	"strings"
)

// Shapes of services that stray from the Redfish specification (DSP0266), or that use what few others use.
const (
	// RedfishTypes gives properties that no client needs another JSON type than the schema does.
	RedfishTypes RedfishShape = "types"
	// RedfishNoLocation names a new session in the answer's body alone, and answers 200 instead of 201.
	RedfishNoLocation RedfishShape = "no-location"
	// RedfishSlash redirects every path without a slash at its end to the same path with one.
	RedfishSlash RedfishShape = "slash"
	// RedfishBodyTag wants If-Match, and gives the ETag as @odata.etag alone.
	RedfishBodyTag RedfishShape = "body-tag"
	// RedfishWeakTag wants If-Match with the strong ETag, and has the weak one in its header.
	RedfishWeakTag RedfishShape = "weak-tag"
	// RedfishPages gives collections in pages, and another system before the machine.
	RedfishPages RedfishShape = "pages"
	// RedfishAbsolute writes links and the targets of actions as URLs with scheme, host and port.
	RedfishAbsolute RedfishShape = "absolute"
	// RedfishBusy answers every tenth request with 503.
	RedfishBusy RedfishShape = "busy"
	// RedfishManagers has another manager besides the system's own.
	RedfishManagers RedfishShape = "managers"
	// RedfishSettings takes the boot override in the system's settings object alone, with If-Match, like AMI's services.
	RedfishSettings RedfishShape = "settings"
	// RedfishStaleSettings has a settings object that holds Pxe Once of an earlier start. It accepts changes of that
	// object and uses none. The system refuses BootSourceOverrideMode.
	RedfishStaleSettings RedfishShape = "stale-settings"
	// RedfishTasks answers writes with 202 and a task, and inserts a medium after a few reads.
	RedfishTasks RedfishShape = "tasks"
)

const (
	// redfishOtherSystem is a system that is on, and redfishOtherManager a manager without virtual drives.
	redfishOtherSystem  = "/redfish/v1/Systems/0"
	redfishOtherManager = "/redfish/v1/Managers/0"
	// redfishBusyEach: each such request is answered by 503.
	redfishBusyEach = 10
)

// RedfishOddities returns these shapes.
func RedfishOddities() []RedfishShape {
	return []RedfishShape{
		RedfishTypes, RedfishNoLocation, RedfishSlash, RedfishBodyTag, RedfishWeakTag, RedfishPages, RedfishAbsolute, RedfishBusy,
		RedfishManagers, RedfishSettings, RedfishStaleSettings, RedfishTasks,
	}
}

// wantsTag reports whether a write needs If-Match.
func (r *Redfish) wantsTag() bool {
	return r.shape == RedfishSupermicro || r.shape == RedfishBodyTag || r.shape == RedfishWeakTag || r.shape == RedfishSettings
}

// bootPath is the path of the resource whose boot override is written.
func (r *Redfish) bootPath() string {
	if r.shape == RedfishSettings {
		return r.settingsPath()
	}
	return r.systemPath()
}

// settingsPath is the path of the system's settings object.
func (r *Redfish) settingsPath() string { return r.systemPath() + "/SD" }

// formatTag returns an ETag as a write must name it.
func (r *Redfish) formatTag(tag string) string {
	if r.shape == RedfishBodyTag || r.shape == RedfishWeakTag {
		return strconv.Quote(tag)
	}
	return "W/" + strconv.Quote(tag)
}

// deflect answers a request that is not carried out because of the shape.
func (r *Redfish) deflect(q *http.Request) (a redfishAnswer, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.received++
	switch {
	case r.shape == RedfishSlash && !strings.HasSuffix(q.URL.Path, "/"):
		a = redfishAnswer{http.StatusMovedPermanently, nil, map[string]string{"Location": q.URL.Path + "/"}}
		if q.Method != http.MethodGet {
			a.status, a.header["Location"] = http.StatusPermanentRedirect, "https://"+q.Host+q.URL.Path+"/"
		}
		return a, true
	case r.shape == RedfishBusy && r.received%redfishBusyEach == 0:
		a = redfishError(http.StatusServiceUnavailable, "The service is busy.")
		a.header = map[string]string{"Retry-After": "0"}
		return a, true
	}
	return a, false
}

// otherResource returns a resource that only some shapes have.
func (r *Redfish) otherResource(path string) (map[string]any, bool) {
	switch {
	case r.shape == RedfishPages && path == redfishOtherSystem:
		return odata(path, "ComputerSystem.v1_13_0.ComputerSystem", "Another system", map[string]any{"PowerState": "On"}), true
	case r.shape == RedfishManagers && path == redfishOtherManager:
		return odata(path, "Manager.v1_11_0.Manager", "Chassis manager", map[string]any{"ManagerType": "EnclosureManager"}), true
	case r.shape == RedfishSettings && path == r.bootPath():
		return odata(path, "ComputerSystem.v1_13_0.ComputerSystem", "Settings", map[string]any{"Boot": r.system()["Boot"]}), true
	case r.shape == RedfishStaleSettings && path == r.settingsPath():
		return odata(path, "ComputerSystem.v1_13_0.ComputerSystem", "Settings", map[string]any{"Boot": map[string]any{
			"BootSourceOverrideTarget": "Pxe", "BootSourceOverrideEnabled": "Once", "BootSourceOverrideMode": "UEFI",
		}}), true
	}
	return nil, false
}

// twist changes a successful answer into the shape's.
func (r *Redfish) twist(q *http.Request, a *redfishAnswer) {
	path, tag := strings.TrimSuffix(q.URL.Path, "/"), a.header["ETag"]
	reads := q.Method == http.MethodGet && a.body != nil
	switch r.shape {
	case RedfishTypes:
		if reads {
			mistype(a.body)
		}
	case RedfishNoLocation:
		if a.header["Location"] != "" {
			a.status = http.StatusOK
			delete(a.header, "Location")
		}
	case RedfishBodyTag, RedfishWeakTag:
		if tag == "" {
			break
		}
		a.body["@odata.etag"] = tag
		if a.header["ETag"] = "W/" + tag; r.shape == RedfishBodyTag {
			delete(a.header, "ETag")
		}
	case RedfishPages:
		if reads && a.body["Members"] != nil {
			paginate(a.body, path, q.URL.RawQuery)
		}
	case RedfishAbsolute:
		makeAbsolute("https://"+q.Host, a.body)
		if at := a.header["Location"]; at != "" {
			a.header["Location"] = "https://" + q.Host + at
		}
	case RedfishSettings:
		if reads && path == r.systemPath() {
			a.body["Boot"] = map[string]any{"BootSourceOverrideTarget": "None", "BootSourceOverrideEnabled": "Disabled"}
			a.body["@Redfish.Settings"] = map[string]any{"SettingsObject": link(r.settingsPath())}
		}
	case RedfishStaleSettings:
		if reads && path == r.systemPath() {
			a.body["@Redfish.Settings"] = map[string]any{"SettingsObject": link(r.settingsPath())}
		}
	case RedfishTasks:
		if q.Method == http.MethodPost && strings.Contains(path, "/Actions/") || q.Method == http.MethodPatch {
			*a = redfishAnswer{http.StatusAccepted, odata("/redfish/v1/TaskService/Tasks/1", "Task.v1_4_0.Task", "Task", nil), map[string]string{
				"Location": "/redfish/v1/TaskService/TaskMonitors/1",
			}}
		}
	case RedfishManagers:
		if members, ok := a.body["Members"].([]any); ok && path == "/redfish/v1/Managers" {
			a.body["Members"] = append([]any{link(redfishOtherManager)}, members...)
		}
	}
}

// paginate turns a collection into its first page, unless query asks for the second one.
func paginate(body map[string]any, path, query string) {
	if query != "" {
		return
	}
	body["Members"] = []any{}
	if path == "/redfish/v1/Systems" {
		body["Members"] = []any{link(redfishOtherSystem)}
	}
	body["Members@odata.nextLink"] = path + "?$skip=1"
}

// makeAbsolute puts the origin before all paths of links and actions.
func makeAbsolute(origin string, value any) {
	switch v := value.(type) {
	case []any:
		for _, x := range v {
			makeAbsolute(origin, x)
		}
	case map[string]any:
		for name, x := range v {
			if s, ok := x.(string); ok && (name == "@odata.id" || name == "target") {
				v[name] = origin + s
			}
			makeAbsolute(origin, x)
		}
	}
}

// mistype gives a resource properties of wrong types.
func mistype(body map[string]any) {
	maps.Copy(body, map[string]any{
		"@odata.context": 1, "Description": map[string]any{}, "Status": "OK", "UUID": 1, "Product": false,
		"AssetTag": 77, "BootProgress": "none", "HostName": []any{}, "LocationIndicatorActive": "no", "MemorySummary": "32 GiB",
		"OperatingSystem": link("/redfish/v1/Systems/1/OperatingSystem"), "PCIeDevices@odata.count": "3", "PowerRestorePolicy": 3,
		"ProcessorSummary": map[string]any{"Count": "2"}, "ProtocolFeaturesSupported": "none",
		"AutoDSTEnabled": "no", "DateTime": 1, "Redundancy": "none", "SerialConsole": true,
		"EjectTimeout": 1, "WriteProtected": "yes", "Members@odata.count": "1",
	})
	if id, ok := body["Id"].(string); ok && len(id) == 1 {
		body["Id"] = 1
	}
	if boot, ok := body["Boot"].(map[string]any); ok {
		boot["BootOrder"], boot["AutomaticRetryAttempts"] = "Boot0001", "3"
	}
	if links, ok := body["Links"].(map[string]any); ok {
		links["Chassis@odata.count"], links["ManagerForServers@odata.count"] = "1", "1"
	}
	for _, list := range []string{"Temperatures", "Fans"} {
		sensors, _ := body[list].([]any)
		for _, s := range sensors {
			if s, ok := s.(map[string]any); ok {
				s["SensorNumber"], s["UpperThresholdFatal"] = "1", "high"
			}
		}
	}
}
