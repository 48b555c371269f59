package bmc

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"

	fish "github.com/stmcginnis/gofish/redfish"
)

// The settings object of a resource holds properties that the service applies at a later start (DSP0266, settings
// resource). Services differ in where they accept a boot override: those of AMI only in the settings object, others
// both there and in the system itself. Some keep an override in the settings object after it was used. Therefore an
// override in the settings object proves a boot device only if the service rejected the device in the system itself.

// addPendingBoot reads the boot override in the settings object of system. path is the path of system. In two cases,
// addPendingBoot copies this override into system: if the service accepted the boot device only in the settings object;
// and if an override is to be removed and only the settings object holds one, because setBootDevice would otherwise not
// find it. Except in the first case, addPendingBoot stores the override in t.pending.
func (t *redfishTransport) addPendingBoot(q *http.Request, path string, system map[string]any) error {
	settings, _ := system["@Redfish.Settings"].(map[string]any)
	t.systemPath, t.settingsPath, t.pending = path, pathOf(settings["SettingsObject"]), nil
	if t.settingsPath == "" || t.wantedBoot == "" && !t.inspects {
		return nil
	}
	inSettings, removes := t.bootPath == t.settingsPath, t.wantedBoot == "none"
	pending, err := t.readSettings(q)
	if err != nil {
		if inSettings {
			return err
		}
		t.note("unreadable settings", "the settings object %s cannot be read", t.settingsPath)
		if removes {
			pending = map[string]any{"BootSourceOverrideTarget": "unreadable"}
		}
	}
	if inSettings || removes && t.bootPath == "" && inForce(pending) && !inForce(system["Boot"]) {
		system["Boot"] = pending
	}
	if !inSettings && inForce(pending) {
		t.pending = pending
		if now := bootWord(system["Boot"]); now != bootWord(pending) {
			t.note("pending", "the settings object %s has boot device %s, but the system has %s", t.settingsPath, bootWord(pending), now)
		}
	}
	return nil
}

// inForce reports whether boot, a boot override, sets a boot device.
func inForce(boot any) bool { return bootWord(boot) != "none" }

// bootWord returns the boot device of a boot override, or "none" if the override sets no device. The override has the form
// that usedPart returns.
func bootWord(boot any) string {
	b, _ := boot.(map[string]any)
	target, _ := b["BootSourceOverrideTarget"].(string)
	enabled, _ := b["BootSourceOverrideEnabled"].(string)
	return overrideOf(fish.Boot{
		BootSourceOverrideTarget: fish.BootSourceOverrideTarget(target), BootSourceOverrideEnabled: fish.BootSourceOverrideEnabled(enabled),
	}).Device
}

// readSettings returns the boot override in the settings object of the system. It returns nil if the system has no
// settings object, or if that object has no override.
func (t *redfishTransport) readSettings(q *http.Request) (boot map[string]any, err error) {
	if t.settingsPath == "" {
		return nil, nil
	}
	x := &exchange{t: t, q: q.Clone(t.ctx)}
	x.q.Method, x.q.Body, x.q.GetBody, x.q.ContentLength = http.MethodGet, nil, nil, 0
	x.q.URL = &url.URL{Scheme: "https", Host: t.host, Path: t.settingsPath}
	x.q.Header.Del("If-Match")
	res, body, err := x.send()
	if err != nil {
		return nil, err
	}
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		if t.bootPath != t.settingsPath {
			return nil, nil // the settings object cannot be read, and nothing was written to it
		}
		fallthrough
	default:
		return nil, judgeStatus(x.q, res.StatusCode, body, false)
	}
	var resource struct{ Boot map[string]any }
	err = json.Unmarshal(body, &resource)
	return resource.Boot, err
}

// redirectBoot prepares another attempt after the system rejected a request that sets the boot device. If the system's
// settings object has a boot override, the next attempt leaves out the boot mode, which some services reject, and the
// attempt after that goes to the settings object. again reports whether to send the request again. Without a settings
// object, redirectBoot does nothing, because bmclib itself sends the request again without the mode.
func (x *exchange) redirectBoot(status int) (again bool, err error) {
	t := x.t
	if !x.changesSystem || x.sentToSettings || x.q.GetBody == nil {
		return false, nil
	}
	boot, err := t.readSettings(x.q)
	if err != nil || boot["BootSourceOverrideTarget"] == nil {
		return false, nil // do not retry: the status of the first attempt becomes the error
	}
	if x.fullBody == nil {
		if x.fullBody, err = readBody(x.q); err != nil {
			return false, err
		}
		if short := dropMode(x.fullBody); short != nil && status == http.StatusBadRequest {
			x.setBody(short)
			return true, nil
		}
	}

	x.sentToSettings, x.matched = true, nil
	t.note("settings", "%s rejects the boot device, so Ingot sets it in %s", x.q.URL.Path, t.settingsPath)
	x.q.URL = &url.URL{Scheme: "https", Host: t.host, Path: t.settingsPath}
	x.setBody(x.fullBody)
	x.q.Header.Del("If-Match")
	if tags := t.tags[t.settingsPath]; len(tags) > 0 {
		x.q.Header.Set("If-Match", tags[0])
	}
	return true, nil
}

func readBody(q *http.Request) ([]byte, error) {
	body, err := q.GetBody()
	if err != nil {
		return nil, err
	}
	out, err := io.ReadAll(body)
	return out, errors.Join(err, body.Close())
}

// setBody sets the request body for the next attempt.
func (x *exchange) setBody(body []byte) {
	x.q.ContentLength = int64(len(body))
	x.q.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
}

// dropMode returns body without the mode of the boot override. It returns nil if body contains no mode.
func dropMode(body []byte) []byte {
	var change map[string]map[string]any
	if json.Unmarshal(body, &change) != nil || change["Boot"]["BootSourceOverrideMode"] == nil {
		return nil
	}
	delete(change["Boot"], "BootSourceOverrideMode")
	short, err := json.Marshal(change)
	if err != nil {
		return nil
	}
	return short
}
