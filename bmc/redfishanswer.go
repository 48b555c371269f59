package bmc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/common"
	fish "github.com/stmcginnis/gofish/redfish"
)

// A Redfish service may add properties to a resource, and some services return a property in another JSON type than the
// schema requires. gofish cannot decode a resource if one of its properties has the wrong type. Therefore gofish gets
// only the properties that Ingot uses, converted to the types that gofish expects.

// reader converts a JSON value to the type that gofish expects. If it returns nil, the property is left out.
type reader func(value any) any

// usedProperties reads the properties that Ingot uses, for all kinds of resources together. This is possible because no
// property name has different types in different kinds.
var usedProperties = fields(map[string]reader{
	"@odata.id":   text,
	"@odata.type": text,
	"Id":          text,
	"Name":        text,
	// collections
	"Members":                list(linked),
	"Members@odata.nextLink": text,
	// properties of the service root, and of the services of sessions and accounts
	"RedfishVersion": text,
	"Systems":        linked,
	"Managers":       linked,
	"Chassis":        linked,
	"SessionService": linked,
	"Sessions":       linked,
	"AccountService": linked,
	"Accounts":       linked,
	"Links": fields(
		map[string]reader{"Sessions": linked, "Members": list(linked), "ManagedBy": list(linked), "ManagerForServers": list(linked)},
	),
	"UserName":              text,
	"ClientOriginIPAddress": text,
	// systems
	"Manufacturer":          text,
	"Model":                 text,
	"BiosVersion":           text,
	"PowerState":            text,
	"SecureBoot":            linked,
	"SecureBootCurrentBoot": text,
	"Boot": fields(map[string]reader{
		"BootSourceOverrideEnabled": text, "BootSourceOverrideMode": text, "BootSourceOverrideTarget": text,
	}),
	"@Redfish.Settings": fields(map[string]reader{"SettingsObject": linked}),
	// properties of managers and virtual drives
	"FirmwareVersion": text,
	"LastResetTime":   text,
	"VirtualMedia":    linked,
	"MediaTypes":      list(text),
	"Inserted":        boolean,
	"Image":           text,
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

// fields returns a reader for an object with these properties. If the value is not an object, the reader sets each
// property to an unknown value and does not leave it out: a boot device that cannot be read must not count as none.
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

// list returns a reader for an array. The reader treats a single value as an array with one element.
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

// text reads a string. It converts any other value to JSON text, which is never one of the states that Ingot waits for.
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

// linked reads a link to a resource. It returns nil if the value contains no link.
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

// boolean reads a boolean. It returns an invalid value unchanged, so that gofish fails with an error that names the
// property. The value must not be left out, because it may be the proof that a write had an effect.
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

// usedPart returns those properties of the resource in body that Ingot uses, and the ETag in body. If body contains no
// @odata.id, it uses path as the @odata.id. It returns nil if body is not a JSON object.
func usedPart(body []byte, path string) (used map[string]any, tag string) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var object map[string]any
	if decoder.Decode(&object) != nil || object == nil {
		return nil, ""
	}
	used, _ = usedProperties(object).(map[string]any)
	if _, ok := object["@odata.id"].(string); !ok {
		used["@odata.id"] = path
	}
	tag, _ = text(object["@odata.etag"]).(string)
	return used, tag
}

// used returns, as JSON, those properties of a resource that Ingot uses, with all links as paths. From the collections
// of systems and managers it removes all except the used system and the managers of this system. If the ETag is only in
// the body, used adds it to the header of res.
func (t *redfishTransport) used(q *http.Request, res *http.Response, body []byte) ([]byte, error) {
	if t.inspects {
		for _, text := range oddProperties(body, q.URL.Path) {
			t.note(text, "%s", text)
		}
	}
	object, tag := usedPart(body, q.URL.Path)
	if object == nil {
		return body, nil
	}
	t.localize(q.URL, object)
	t.tag(q.URL.Path, res.Header, tag)

	path, kind := strings.TrimSuffix(q.URL.Path, "/"), object["@odata.type"]
	switch {
	case path == strings.TrimSuffix(common.DefaultServiceRoot, "/"):
		t.systems, t.managers = pathOf(object["Systems"]), pathOf(object["Managers"])
	case path == t.systems && t.system != "":
		object["Members"] = slices.DeleteFunc(membersOf(object), func(m any) bool { return lastPart(pathOf(m)) != t.system })
	case path == t.managers:
		isOurs := func(m any) bool { return slices.Contains(t.managedBy, pathOf(m)) }
		if all := membersOf(object); slices.ContainsFunc(all, isOurs) {
			object["Members"] = slices.DeleteFunc(all, func(m any) bool { return !isOurs(m) })
		}
	case strings.HasPrefix(fmt.Sprint(kind), "#ComputerSystem.") && (t.settingsPath == "" || path != t.settingsPath):
		t.managedBy = nil
		links, _ := object["Links"].(map[string]any)
		managers, _ := links["ManagedBy"].([]any)
		for _, m := range managers {
			t.managedBy = append(t.managedBy, pathOf(m))
		}
		if err := t.addPendingBoot(q, path, object); err != nil {
			return nil, err
		}
	}
	return json.Marshal(object)
}

func membersOf(collection map[string]any) []any {
	members, _ := collection["Members"].([]any)
	return members
}

// pathOf returns the path of the resource to which reference refers, without a trailing slash.
func pathOf(reference any) string {
	object, _ := reference.(map[string]any)
	id, _ := object["@odata.id"].(string)
	return strings.TrimSuffix(id, "/")
}

func lastPart(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// localize replaces all links in value by paths. It changes value itself.
func (t *redfishTransport) localize(base *url.URL, value any) {
	switch v := value.(type) {
	case []any:
		for _, x := range v {
			t.localize(base, x)
		}
	case map[string]any:
		for name, x := range v {
			link, ok := x.(string)
			if ok && (name == "@odata.id" || name == "target" || name == "Members@odata.nextLink") {
				v[name] = t.local(base, link)
			}
			t.localize(base, x)
		}
	}
}

// local returns the path of a link that a resource at base contains. For a link to another host, it returns a path that
// begins with the constant elsewhere and names the host. RoundTrip refuses such a path, so the link fails only if it is
// used.
func (t *redfishTransport) local(base *url.URL, link string) string {
	if strings.HasPrefix(link, "/") && !strings.HasPrefix(link, "//") {
		return link
	}
	to, err := base.Parse(link)
	if err != nil {
		return elsewhere + url.PathEscape(link)
	}
	if !t.own(to) {
		return elsewhere + url.PathEscape(to.Scheme+"://"+to.Host)
	}
	t.note("link", "the BMC returns links that are not absolute paths, such as %s", link)
	if to.Fragment != "" {
		return to.RequestURI() + "#" + to.EscapedFragment()
	}
	return to.RequestURI()
}

// tag stores the ETags of a resource in t.tags: the ETag of the header and the ETag of the body, each in all the forms
// that some services require.
func (t *redfishTransport) tag(path string, header http.Header, inBody string) {
	var tags []string
	for _, tag := range []string{header.Get("ETag"), inBody} {
		strong := strings.TrimPrefix(tag, "W/")
		bare := strings.Trim(strong, `"`)
		for _, form := range []string{tag, strong, `"` + bare + `"`, bare} {
			if tag != "" && !strings.ContainsFunc(form, func(r rune) bool { return r <= ' ' || r > '~' }) {
				tags = append(tags, form)
			}
		}
	}
	t.tags[strings.TrimSuffix(path, "/")] = tags
	if header.Get("ETag") == "" && len(tags) > 0 {
		t.note("etag", "the ETag of %s is only in the body, not in the header", path)
		header.Set("ETag", tags[0])
	}
}

// schemas maps the beginning of @odata.type to a function that creates gofish's struct for this type.
var schemas = map[string]func() any{
	"#ServiceRoot":    func() any { return new(gofish.Service) },
	"#ComputerSystem": func() any { return new(fish.ComputerSystem) },
	"#Manager":        func() any { return new(fish.Manager) },
	"#VirtualMedia":   func() any { return new(fish.VirtualMedia) },
	"#SecureBoot":     func() any { return new(fish.SecureBoot) },
	"#Chassis":        func() any { return new(fish.Chassis) },
	"#Thermal":        func() any { return new(fish.Thermal) },
}

// oddProperties returns a sentence for each property of a resource that has another JSON type than gofish expects.
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
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](json.Unmarshal(alone, schema())); ok {
			odd = append(odd, fmt.Sprintf("%s: %s has a value of type %s instead of %s", path, name, wrong.Value, wrong.Type))
		}
	}
	return odd
}
