package action

import (
	"slices"
	"strings"
	"testing"
)

func TestFiles(t *testing.T) {
	env := map[string]string{
		FilesVariable: ` [{"path": "/a/./b", "from": "X", "mode": "0600"}, {"path": "/c", "base64": "aGk="}, {"path": "/d", "directory": true}] `,
		"X":           "secret",
	}
	files, err := Files(env)
	if err != nil || len(files) != 3 || files[0].Path != "/a/b" || files[0].Contents != "secret" || files[1].Contents != "hi" ||
		!files[2].Directory {
		t.Fatalf("%+v, %v", files, err)
	}
	// All problems are reported at once, with their positions and without contents.
	env[FilesVariable] = `[{"path": "a", "from": "X", "mode": "8"}, {"path": "/b", "contents": "secret", "from": "X", "owner": "-1"}]`
	_, err = Files(env)
	if err == nil {
		t.Fatal("invalid files were accepted")
	}
	for _, want := range []string{"FILES[0] \"a\": path must be absolute", `mode "8"`, "FILES[1] \"/b\": give only one of", `owner "-1"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("%v shows contents", err)
	}
	env[FilesVariable] = "[" + strings.Repeat(`{"path": "/x"},`, maxFiles) + `{"path": "/y"}]`
	if _, err := Files(env); err == nil {
		t.Error("too many files were accepted")
	}
}

func TestNatives(t *testing.T) {
	for image, want := range map[string]string{
		"inject": Inject, "growpart:v1": GrowPart, "efiboot": EFIBoot, "quay.io/tinkerbell/actions/kexec:latest": Kexec,
		"127.0.0.1/embedded/kexec": Kexec, "example.org/x/kexec": "", "me/inject": "",
	} {
		if got, ok := Native(image); got != want || ok != (want != "") {
			t.Errorf("%s: %q %v", image, got, ok)
		}
	}
	all := Names()
	if !slices.IsSorted(all) || !slices.Contains(all, "disk-wipe") {
		t.Errorf("%v", all)
	}
	for _, name := range all {
		native, ok := Native(name)
		if !ok {
			t.Errorf("%s is not known", name)
		}
		if Leaves(native) != (native == Reboot || native == PowerOff || native == Kexec || native == WaitDaemon) {
			t.Errorf("%s leaves: %v", name, Leaves(native))
		}
	}
	if !Writes(Kexec, nil) || !Writes(Inject, nil) || !Writes(GrowPart, nil) || !Writes(Wipe, nil) || Writes(EFIBoot, nil) ||
		Writes(Reboot, nil) {
		t.Error("Writes is wrong about the bound disk")
	}
	if Writes(Wipe, map[string]string{"ALL_DISKS": "true"}) || !Writes(Wipe, map[string]string{"ALL_DISKS": "maybe"}) {
		t.Error("only a wipe of all disks may run without a bound disk")
	}
}
