package bmc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/stmcginnis/gofish"
	fish "github.com/stmcginnis/gofish/redfish"
)

// A Redfish service may add properties to a resource, and some give one another JSON type than its schema
// does. gofish decodes a resource whole or not at all. Therefore only the properties that Ingot uses reach
// gofish, in the types that it expects.

// reader returns a JSON value in the type that gofish expects. nil = the property is left out.
type reader func(value any) any

// usedProperties are the properties that Ingot uses, of all resources. No two resources use one name for
// different types.
var usedProperties = fields(map[string]reader{
	"@odata.id": text, "@odata.type": text, "Id": text, "Name": text,
	// collections
	"Members": list(linked), "Members@odata.nextLink": text,
	// the service root, and the services of sessions and accounts
	"RedfishVersion": text, "Systems": linked, "Managers": linked, "Chassis": linked,
	"SessionService": linked, "Sessions": linked, "AccountService": linked, "Accounts": linked,
	"Links":    fields(map[string]reader{"Sessions": linked, "Members": list(linked), "ManagerForServers": list(linked)}),
	"UserName": text, "ClientOriginIPAddress": text,
	// systems
	"Manufacturer": text, "Model": text, "BiosVersion": text, "PowerState": text, "SecureBoot": linked,
	"SecureBootCurrentBoot": text,
	"Boot": fields(map[string]reader{
		"BootSourceOverrideEnabled": text, "BootSourceOverrideMode": text, "BootSourceOverrideTarget": text,
	}),
	// managers and virtual drives
	"FirmwareVersion": text, "LastResetTime": text, "VirtualMedia": linked,
	"MediaTypes": list(text), "Inserted": boolean, "Image": text,
	"Actions": fields(map[string]reader{
		"#ComputerSystem.Reset": action, "#Manager.Reset": action, "#VirtualMedia.InsertMedia": action,
		"#VirtualMedia.EjectMedia": action,
	}),
	// sensors
	"Thermal": linked,
	"Temperatures": list(fields(map[string]reader{
		"Name": text, "ReadingCelsius": number, "Status": status,
	})),
	"Fans": list(fields(map[string]reader{"Name": text, "Reading": whole, "ReadingUnits": text, "Status": status})),
})

var (
	action = fields(map[string]reader{
		"target": text, "ResetType@Redfish.AllowableValues": list(text), "@Redfish.ActionInfo": text,
	})
	status = fields(map[string]reader{"Health": text})
)

// fields reads an object. If it is another type, its properties are unknown and not absent: a boot device
// that cannot be read must not count as no boot device.
func fields(properties map[string]reader) reader {
	return func(value any) any {
		object, ok := value.(map[string]any)
		out := map[string]any{}
		for name, read := range properties {
			v := object[name]
			if !ok {
				v = map[string]any{"unknown": value}
			}
			if v == nil {
				continue
			}
			if v = read(v); v != nil {
				out[name] = v
			}
		}
		return out
	}
}

// list reads an array, or a single value as an array of one.
func list(read reader) reader {
	return func(value any) any {
		values, ok := value.([]any)
		if !ok {
			values = []any{value}
		}
		out := []any{}
		for _, v := range values {
			if v = read(v); v != nil {
				out = append(out, v)
			}
		}
		return out
	}
}

// text reads a string, and everything else as its JSON, which is no state that Ingot waits for.
func text(value any) any {
	if s, ok := value.(string); ok || value == nil {
		return s
	}
	out, err := json.Marshal(value)
	if err != nil {
		return nil
	}
	return string(out)
}

// linked reads a link to a resource.
func linked(value any) any {
	id := value
	if object, ok := value.(map[string]any); ok {
		if id = object["@odata.id"]; id == nil {
			id = object["href"]
		}
	}
	if s, ok := id.(string); ok && s != "" {
		return map[string]any{"@odata.id": s}
	}
	return nil
}

// boolean reads a boolean. Another value stays, so that gofish refuses it by its name: the flag may prove a write.
func boolean(value any) any {
	s, _ := text(value).(string)
	switch strings.ToLower(s) {
	case "true", "1":
		return true
	case "false", "0":
		return false
	}
	return value
}

func number(value any) any {
	s, _ := text(value).(string)
	f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil || math.IsNaN(f) || math.Abs(f) > math.MaxInt32 {
		return nil
	}
	return f
}

func whole(value any) any {
	f, ok := number(value).(float64)
	if !ok {
		return nil
	}
	return int(math.Round(f))
}

// usedPart returns the properties of a resource that Ingot uses. path is where it was read, for a resource
// that does not name its own path. A body that is no JSON object is returned unchanged.
func usedPart(body []byte, path string) []byte {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var object map[string]any
	if decoder.Decode(&object) != nil {
		return body
	}
	used, _ := usedProperties(object).(map[string]any)
	if _, ok := object["@odata.id"].(string); !ok {
		used["@odata.id"] = path
	}
	out, err := json.Marshal(used)
	if err != nil {
		return body
	}
	return out
}

// schemas are gofish's types, by the start of @odata.type.
var schemas = map[string]func() any{
	"#ServiceRoot":    func() any { return new(gofish.Service) },
	"#ComputerSystem": func() any { return new(fish.ComputerSystem) },
	"#Manager":        func() any { return new(fish.Manager) },
	"#VirtualMedia":   func() any { return new(fish.VirtualMedia) },
	"#SecureBoot":     func() any { return new(fish.SecureBoot) },
	"#Chassis":        func() any { return new(fish.Chassis) },
	"#Thermal":        func() any { return new(fish.Thermal) },
}

// oddProperties returns a sentence for each property of a resource whose type is not the one that gofish knows.
func oddProperties(body []byte, path string) (odd []string) {
	var typed struct {
		Type string `json:"@odata.type"`
	}
	var properties map[string]json.RawMessage
	if json.Unmarshal(body, &typed) != nil || json.Unmarshal(body, &properties) != nil {
		return nil
	}
	kind, _, _ := strings.Cut(typed.Type, ".")
	schema, ok := schemas[kind]
	if !ok {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		alone, err := json.Marshal(map[string]json.RawMessage{name: properties[name]})
		if err != nil {
			continue
		}
		var wrong *json.UnmarshalTypeError
		if errors.As(json.Unmarshal(alone, schema()), &wrong) {
			odd = append(odd, fmt.Sprintf("%s: %s has a value of another type, %s instead of %s", path, name, wrong.Value, wrong.Type))
		}
	}
	return odd
}
