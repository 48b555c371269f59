package lab

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"
)

// redfishNames are the identifiers of the system, the controller and the virtual drives in each shape, "" = in all others.
// In a lab, the drives are the same one.
var redfishNames = map[RedfishShape][]string{
	RedfishDell13:     {"System.Embedded.1", "iDRAC.Embedded.1", "CD"},
	RedfishDell:       {"System.Embedded.1", "iDRAC.Embedded.1", "CD"},
	RedfishHPE:        {"1", "1", "2"},
	RedfishSupermicro: {"1", "1", "CD1", "CD2"},
	"":                {"1", "1", "CD1"},
}

var redfishMakers = map[RedfishShape][2]string{
	RedfishDell13: {"Dell Inc.", "PowerEdge R630"}, RedfishDell: {"Dell Inc.", "PowerEdge R640"},
	RedfishHPE: {"HPE", "ProLiant DL360 Gen10"}, RedfishSupermicro: {"Supermicro", "SYS-1029P"},
}

// maker returns the system's manufacturer and model.
func (r *Redfish) maker() [2]string {
	if maker, ok := redfishMakers[r.shape]; ok {
		return maker
	}
	return [2]string{"Lab", string(r.shape)}
}

const (
	redfishManagerReset = "/Actions/Manager.Reset"
	redfishSystemReset  = "/Actions/ComputerSystem.Reset"
	redfishAccount      = "/redfish/v1/AccountService/Accounts/2" // of the user
	redfishInsert       = "/Actions/VirtualMedia.InsertMedia"
	redfishEject        = "/Actions/VirtualMedia.EjectMedia"
	// redfishRestart is how long the controller is unreachable after its reset.
	redfishRestart = 60 * time.Millisecond
)

var redfishTargets = []string{"None", "Pxe", "Cd", "Hdd", "BiosSetup", "UefiHttp"}

func (r *Redfish) systemPath() string  { return "/redfish/v1/Systems/" + r.names()[0] }
func (r *Redfish) managerPath() string { return "/redfish/v1/Managers/" + r.names()[1] }

func (r *Redfish) names() []string {
	if names, ok := redfishNames[r.shape]; ok {
		return names
	}
	return redfishNames[""]
}

// drivePaths returns the paths of the virtual drives.
func (r *Redfish) drivePaths() (out []string) {
	for _, id := range r.names()[2:] {
		out = append(out, r.managerPath()+"/VirtualMedia/"+id)
	}
	return out
}

func odata(path, kind, name string, more map[string]any) map[string]any {
	if more == nil {
		more = map[string]any{}
	}
	more["@odata.id"], more["@odata.type"], more["Name"] = path, "#"+kind, name
	if id := path[strings.LastIndexByte(path, '/')+1:]; more["Id"] == nil {
		more["Id"] = id
	}
	return more
}

func link(path string) map[string]any { return map[string]any{"@odata.id": path} }

func collection(path, kind string, members ...string) map[string]any {
	list := []any{}
	for _, m := range members {
		list = append(list, link(m))
	}
	return odata(path, kind, "Collection", map[string]any{"Members": list, "Members@odata.count": len(list)})
}

func (r *Redfish) root() map[string]any {
	return odata("/redfish/v1/", "ServiceRoot.v1_5_0.ServiceRoot", "Root Service", map[string]any{
		"Id": "RootService", "RedfishVersion": "1.15.0", "UUID": "00000000-0000-4000-8000-000000000000",
		"Systems": link("/redfish/v1/Systems"), "Managers": link("/redfish/v1/Managers"), "Chassis": link("/redfish/v1/Chassis"),
		"SessionService": link("/redfish/v1/SessionService"), "AccountService": link("/redfish/v1/AccountService"),
		"Links": map[string]any{"Sessions": link("/redfish/v1/SessionService/Sessions")},
	})
}

// resource returns what GET reads at path.
func (r *Redfish) resource(path string) (map[string]any, bool) {
	const chassis = "/redfish/v1/Chassis/1"
	system, manager, drives := r.systemPath(), r.managerPath(), r.drivePaths()
	if slices.Contains(drives, path) {
		return r.drive(path), true
	}
	switch path {
	case "/redfish/v1/SessionService":
		return odata(path, "SessionService.v1_1_6.SessionService", "Session Service", map[string]any{
			"ServiceEnabled": true, "SessionTimeout": 1800, "Sessions": link(path + "/Sessions"),
		}), true
	case "/redfish/v1/SessionService/Sessions":
		var members []string
		for _, s := range r.sessions {
			members = append(members, path+"/"+s.id)
		}
		slices.Sort(members)
		return collection(path, "SessionCollection.SessionCollection", members...), true
	case "/redfish/v1/AccountService":
		return odata(path, "AccountService.v1_5_0.AccountService", "Account Service", map[string]any{
			"ServiceEnabled": true, "Accounts": link(path + "/Accounts"),
		}), true
	case "/redfish/v1/AccountService/Accounts":
		return collection(path, "ManagerAccountCollection.ManagerAccountCollection", path+"/1", redfishAccount), true
	case "/redfish/v1/AccountService/Accounts/1", redfishAccount:
		user := "factory"
		if path == redfishAccount {
			user = r.User
		}
		return odata(path, "ManagerAccount.v1_3_0.ManagerAccount", "User Account", map[string]any{
			"UserName": user, "Password": nil, "RoleId": "Administrator", "Enabled": true, "Locked": false,
		}), true
	case "/redfish/v1/Systems":
		return collection(path, "ComputerSystemCollection.ComputerSystemCollection", system), true
	case system:
		return r.system(), true
	case system + "/SecureBoot":
		return odata(path, "SecureBoot.v1_1_0.SecureBoot", "UEFI Secure Boot", map[string]any{
			"SecureBootEnable": true, "SecureBootCurrentBoot": "Enabled", "SecureBootMode": "DeployedMode",
		}), true
	case "/redfish/v1/Managers":
		return collection(path, "ManagerCollection.ManagerCollection", manager), true
	case manager:
		return odata(path, "Manager.v1_11_0.Manager", "Manager", map[string]any{
			"ManagerType": "BMC", "FirmwareVersion": "1.2.3", "LastResetTime": r.started.Format(time.RFC3339Nano),
			"Status": map[string]any{"State": "Enabled", "Health": "OK"}, "VirtualMedia": link(path + "/VirtualMedia"),
			"Links": map[string]any{"ManagerForServers": []any{link(system)}},
			"Actions": map[string]any{"#Manager.Reset": map[string]any{
				"target": path + redfishManagerReset, "ResetType@Redfish.AllowableValues": []string{"GracefulRestart", "ForceRestart"},
			}},
		}), true
	case manager + "/VirtualMedia":
		return collection(path, "VirtualMediaCollection.VirtualMediaCollection", drives...), true
	case "/redfish/v1/Chassis":
		return collection(path, "ChassisCollection.ChassisCollection", chassis), true
	case chassis:
		return odata(path, "Chassis.v1_14_0.Chassis", "Chassis", map[string]any{
			"ChassisType": "RackMount", "Thermal": link(path + "/Thermal"), "Links": map[string]any{"ComputerSystems": []any{link(system)}},
		}), true
	case chassis + "/Thermal":
		return odata(path, "Thermal.v1_6_0.Thermal", "Thermal", map[string]any{
			"Temperatures": []any{map[string]any{
				"@odata.id": path + "#/Temperatures/0", "MemberId": "0", "Name": "Inlet Temp", "ReadingCelsius": 24,
				"Status": map[string]any{"State": "Enabled", "Health": "OK"},
			}},
			"Fans": []any{map[string]any{
				"@odata.id": path + "#/Fans/0", "MemberId": "0", "Name": "Fan 1", "Reading": 4200, "ReadingUnits": "RPM",
				"Status": map[string]any{"State": "Enabled", "Health": "OK"},
			}},
		}), true
	}
	return nil, false
}

func (r *Redfish) system() map[string]any {
	if r.jobReads > 0 {
		if r.jobReads--; r.jobReads == 0 {
			r.boot = r.job
			r.changes++
		}
	}
	power := "Off"
	if r.chassis.PowerState() == On {
		power = "On"
	}
	boot := map[string]any{
		"BootSourceOverrideTarget": r.boot.target, "BootSourceOverrideEnabled": r.boot.enabled,
		"BootSourceOverrideTarget@Redfish.AllowableValues": redfishTargets,
	}
	if r.shape != RedfishHPE {
		boot["BootSourceOverrideMode"] = r.boot.mode
	}
	return odata(r.systemPath(), "ComputerSystem.v1_13_0.ComputerSystem", "System", map[string]any{
		"Manufacturer": r.maker()[0], "Model": r.maker()[1], "SerialNumber": "SN-1",
		"SystemType": "Physical", "PowerState": power, "BiosVersion": "2.10", "Boot": boot,
		"Status": map[string]any{"State": "Enabled", "Health": "OK"}, "SecureBoot": link(r.systemPath() + "/SecureBoot"),
		"Links": map[string]any{"ManagedBy": []any{link(r.managerPath())}, "Chassis": []any{link("/redfish/v1/Chassis/1")}},
		"Actions": map[string]any{"#ComputerSystem.Reset": map[string]any{
			"target": r.systemPath() + redfishSystemReset,
			"ResetType@Redfish.AllowableValues": []string{
				"On", "ForceOff", "GracefulShutdown", "ForceRestart", "PowerCycle", "PushPowerButton",
			},
		}},
	})
}

func (r *Redfish) drive(path string) map[string]any {
	if r.taskReads--; r.taskReads <= 0 && r.task[path] != "" {
		r.media[path] = r.task[path]
		delete(r.task, path)
	}
	media := r.media[path]
	d := odata(path, "VirtualMedia.v1_3_0.VirtualMedia", "Virtual CD", map[string]any{
		"MediaTypes": []string{"CD", "DVD"}, "Inserted": media != "", "Image": nil, "ConnectedVia": "NotConnected", "WriteProtected": true,
		"Actions": map[string]any{
			"#VirtualMedia.InsertMedia": map[string]any{"target": path + redfishInsert},
			"#VirtualMedia.EjectMedia":  map[string]any{"target": path + redfishEject},
		},
	})
	if media != "" {
		d["Image"], d["ConnectedVia"] = media, "URI"
	}
	return d
}

// States returns the paths of the resources whose state writes change: the system, its controller and the virtual drives.
func (r *Redfish) States() []string {
	return append(r.drivePaths(), r.systemPath(), r.bootPath(), r.managerPath())
}

// misread replaces the state in one of States by another one: the other power state, a boot override or medium that was
// never set or none, or a later reset of the controller.
func (r *Redfish) misread(path string, body map[string]any) {
	switch {
	case path == r.systemPath(), path == r.bootPath():
		body["PowerState"] = map[any]string{"On": "Off", "Off": "On"}[body["PowerState"]]
		boot, _ := body["Boot"].(map[string]any)
		other := redfishBoot{target: "BiosSetup", enabled: "Once"}
		if boot["BootSourceOverrideEnabled"] != "Disabled" {
			other = redfishBoot{target: "None", enabled: "Disabled"}
		}
		boot["BootSourceOverrideTarget"], boot["BootSourceOverrideEnabled"] = other.target, other.enabled
	case path == r.managerPath():
		body["LastResetTime"] = time.Now().Format(time.RFC3339Nano)
	case slices.Contains(r.drivePaths(), path):
		inserted, _ := body["Inserted"].(bool)
		body["Inserted"], body["Image"] = !inserted, "http://192.0.2.1/another.iso"
	}
}

// setBoot changes the boot override.
func (r *Redfish) setBoot(match string, data map[string]any) redfishAnswer {
	if r.wantsTag() && match != r.etag() {
		if match == "" {
			return redfishError(http.StatusPreconditionRequired, "The ETag is missing.")
		}
		return redfishError(http.StatusPreconditionFailed, "The ETag did not match.")
	}
	boot, _ := data["Boot"].(map[string]any)
	if boot == nil || len(data) != 1 {
		return redfishError(http.StatusBadRequest, "Only Boot can be changed.")
	}
	next := r.boot
	for name, value := range boot {
		text, _ := value.(string)
		allowed := []string{}
		switch name {
		case "BootSourceOverrideTarget":
			allowed, next.target = redfishTargets, text
		case "BootSourceOverrideEnabled":
			allowed, next.enabled = []string{"Disabled", "Once", "Continuous"}, text
			if r.shape == RedfishDell13 {
				allowed = []string{"Disabled", "Continuous"}
			}
		case "BootSourceOverrideMode":
			allowed, next.mode = []string{"UEFI", "Legacy"}, text
			if r.shape == RedfishHPE || r.shape == RedfishStaleSettings {
				allowed = nil
			}
		}
		if !slices.Contains(allowed, text) {
			return redfishError(http.StatusBadRequest, "The value %v for the property %s is not in the list of acceptable values.", value, name)
		}
	}
	if next.target == "None" {
		next.enabled = "Disabled"
	}
	if r.shape == RedfishDell || r.shape == RedfishDell13 {
		r.job, r.jobReads = next, jobReads
		return redfishOK(map[string]any{"@Message.ExtendedInfo": []any{map[string]any{
			"MessageId": "IDRAC.2.1.SYS413", "Message": "The operation successfully completed.",
		}}})
	}
	r.boot = next
	r.changes++
	return redfishAnswer{status: http.StatusNoContent}
}

// setAccount changes the user's password. HPE's ends the user's sessions.
func (r *Redfish) setAccount(match string, data map[string]any) redfishAnswer {
	password, _ := data["Password"].(string)
	switch {
	case r.wantsTag() && match != r.accountTag():
		return redfishError(http.StatusPreconditionFailed, "The ETag did not match.")
	case len(data) != 1 || len(password) < 8 || len(password) > 20:
		return redfishError(http.StatusBadRequest, "The value %q for the property Password is not acceptable.", password)
	}
	r.accepts = password
	r.accounts++
	if r.shape == RedfishHPE {
		clear(r.sessions)
	}
	return redfishAnswer{status: http.StatusNoContent}
}

// act carries out an action.
func (r *Redfish) act(ctx context.Context, path string, data map[string]any) redfishAnswer {
	word, _ := data["ResetType"].(string)
	switch path {
	case r.systemPath() + redfishSystemReset:
		return r.power(ctx, word)
	case r.managerPath() + redfishManagerReset:
		if word != "GracefulRestart" && word != "ForceRestart" {
			return redfishError(http.StatusBadRequest, "The value %q for ResetType is not acceptable.", word)
		}
		r.resets++
		clear(r.sessions)
		r.started, r.downTill = time.Now(), time.Now().Add(redfishRestart)
		return redfishAnswer{status: http.StatusNoContent}
	}
	for _, drive := range r.drivePaths() {
		switch path {
		case drive + redfishInsert:
			return r.insert(ctx, drive, data)
		case drive + redfishEject:
			return r.eject(ctx, drive)
		}
	}
	return redfishError(http.StatusNotFound, "The action %s was not found.", path)
}

// insert inserts a medium into a virtual drive.
func (r *Redfish) insert(ctx context.Context, drive string, data map[string]any) redfishAnswer {
	image, _ := data["Image"].(string)
	if image == "" || r.shape == RedfishSupermicro && len(data) > 1 {
		return redfishError(http.StatusBadRequest, "The properties of InsertMedia are not acceptable.")
	}
	if r.media[drive] != "" {
		return redfishError(http.StatusConflict, "A medium is inserted already.")
	}
	if d, ok := r.chassis.(Drive); ok {
		if err := d.InsertCD(ctx, image); err != nil {
			return redfishError(http.StatusInternalServerError, "The medium could not be read: %v", err)
		}
	}
	if r.shape == RedfishTasks {
		r.task[drive], r.taskReads = image, jobReads
		return redfishAnswer{status: http.StatusNoContent}
	}
	r.media[drive] = image
	return redfishAnswer{status: http.StatusNoContent}
}

// eject ejects what is in a virtual drive.
func (r *Redfish) eject(ctx context.Context, drive string) redfishAnswer {
	if d, ok := r.chassis.(Drive); ok && r.media[drive] != "" {
		if err := d.EjectCD(ctx); err != nil {
			return redfishError(http.StatusInternalServerError, "The medium could not be ejected: %v", err)
		}
	}
	delete(r.media, drive)
	return redfishAnswer{status: http.StatusNoContent}
}

// power carries out a reset of the system. The boot override is used at each start, and Once at the
// next one only.
func (r *Redfish) power(ctx context.Context, word string) redfishAnswer {
	on := r.chassis.PowerState() == On
	if on == (word == "On") && word != "PushPowerButton" && (r.shape == RedfishHPE || word != "ForceOff") {
		return redfishError(http.StatusBadRequest, "The operation was not successful due to the current power state.")
	}
	if (word == "On" || on && (word == "ForceRestart" || word == "PowerCycle")) && r.boot.enabled != "Disabled" {
		r.chassis.SetNextBoot(map[string]NextBoot{"Pxe": NextNetwork, "UefiHttp": NextNetwork, "Hdd": NextDisk, "Cd": NextCD}[r.boot.target])
		if r.boot.enabled == "Once" {
			r.boot.enabled = "Disabled"
			r.changes++
		}
	}
	var err error
	switch word {
	case "On":
		err = r.chassis.PowerOn(ctx)
	case "ForceOff":
		err = r.chassis.PowerOff(ctx)
	case "GracefulShutdown", "PushPowerButton":
		err = r.chassis.PressPower(ctx)
	case "ForceRestart":
		err = r.chassis.Reset(ctx)
	case "PowerCycle":
		if err = r.chassis.PowerOff(ctx); err == nil {
			err = r.chassis.PowerOn(ctx)
		}
	default:
		return redfishError(http.StatusBadRequest, "The value %q for ResetType is not acceptable.", word)
	}
	if err != nil {
		return redfishError(http.StatusInternalServerError, "%v", err)
	}
	return redfishAnswer{status: http.StatusNoContent}
}
