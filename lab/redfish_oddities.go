package lab

import (
	"maps"
	"net/http"
)

// Shapes of services that stray from the specification or use what few services use, one habit each.
const (
	// RedfishTypes gives properties that no client needs another JSON type than the schema does.
	RedfishTypes RedfishShape = "types"
)

// RedfishOddities returns these shapes.
func RedfishOddities() []RedfishShape { return []RedfishShape{RedfishTypes} }

// twist changes a successful answer into the shape's.
func (r *Redfish) twist(q *http.Request, a *redfishAnswer) {
	switch r.shape {
	case RedfishTypes:
		if q.Method == http.MethodGet && a.body != nil {
			mistype(a.body)
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
