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

// A settings object holds the properties of a resource that a later start applies (DSP0266, settings resource). Services
// use it in different ways: AMI's take the boot override there alone, others there too, and others keep what an earlier
// start has used. Therefore it proves a boot device only after the service rejected it in the system itself.

// addPendingBoot reads the boot override of the settings object of a system that was read. It replaces the system's by
// it if the service took the boot device there. If the override is to be removed, it does so too before a resource took
// the change, so that a pending override is removed.
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
		t.note("unreadable settings", "its settings object %s cannot be read", t.settingsPath)
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
			t.note("pending", "its settings object %s holds boot device %s, and the system %s", t.settingsPath, bootWord(pending), now)
		}
	}
	return nil
}

// inForce reports whether a boot override has an effect.
func inForce(boot any) bool { return bootWord(boot) != "none" }

// bootWord returns the boot device of a boot override as usedPart returns it, or none.
func bootWord(boot any) string {
	b, _ := boot.(map[string]any)
	target, _ := b["BootSourceOverrideTarget"].(string)
	enabled, _ := b["BootSourceOverrideEnabled"].(string)
	return overrideOf(fish.Boot{
		BootSourceOverrideTarget: fish.BootSourceOverrideTarget(target), BootSourceOverrideEnabled: fish.BootSourceOverrideEnabled(enabled),
	}).Device
}

// readSettings returns the boot override of the system's settings object, or nil if there is none.
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
			return nil, nil // it is not used
		}
		fallthrough
	default:
		return nil, judgeStatus(x.q, res.StatusCode, body, false)
	}
	var resource struct{ Boot map[string]any }
	err = json.Unmarshal(body, &resource)
	return resource.Boot, err
}

// redirectBoot takes the next way to set a boot device that the system rejects, if its settings object has a boot
// override: the system without the mode, which some services refuse, and then the settings object. It reports whether
// there is one. Without such an object, bmclib leaves the mode out.
func (x *exchange) redirectBoot(status int) (again bool, err error) {
	t := x.t
	if !x.changesSystem || x.sentToSettings || x.q.GetBody == nil {
		return false, nil
	}
	boot, err := t.readSettings(x.q)
	if err != nil || boot["BootSourceOverrideTarget"] == nil {
		return false, nil // the system's status is the error
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
	t.note("settings", "the boot device is rejected by %s, and set in %s", x.q.URL.Path, t.settingsPath)
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

// setBody replaces the request's body, which is sent at the next attempt.
func (x *exchange) setBody(body []byte) {
	x.q.ContentLength = int64(len(body))
	x.q.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
}

// dropMode returns the body without the mode of the boot override. nil = it has none.
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
