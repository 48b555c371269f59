package ingot

import (
	"go/ast"
	"maps"
	"slices"
	"testing"
)

// readFiles are the files that call os.ReadFile, and what they read: nothing secret, or a document of the operator that may hold
// secrets among other things. A file that is there for a secret alone is read by durablefile.ReadPrivate.
var readFiles = map[string]string{
	"api/images_pull.go":                          "certificates",
	"bmc/home.go":                                 "a list of ipmitool's",
	"cmd/worker-agent/init_linux.go":              "the kernel's files",
	"cmd/worker-agent/modules_linux.go":           "the kernel's files",
	"internal/images/catalog/catalog.go":          "a catalogue of images",
	"worker-agent/container/cgroup_linux.go":      "the kernel's files",
	"worker-agent/container/container_linux.go":   "the agent's resolv.conf, and the id of a process",
	"worker-agent/container/start_linux.go":       "what the agent has written for this process",
	"internal/cli/command.go":                     "documents that a command names",
	"internal/cli/editor.go":                      "a document that the operator edits",
	"internal/cli/genesis_file.go":                "documents that a lab file names",
	"internal/cli/image_proof.go":                 "a public key",
	"internal/cli/host/init_edit.go":              "the configuration",
	"internal/cli/machine_add.go":                 "public keys of SSH",
	"internal/client/session.go":                  "the certificate of this host's server",
	"internal/config/load.go":                     "the configuration",
	"internal/doctor/network.go":                  "the kernel's files",
	"internal/host/hostnet/routes.go":             "the kernel's files",
	"internal/secrets/identity/identity.go":       "certificates",
	"internal/server/alone.go":                    "the id of the data directory",
	"internal/server/backup.go":                   "the configuration",
	"internal/siterole/identities.go":             "address and fingerprint of a peer",
	"internal/siterole/record.go":                 "the role of the server",
	"internal/temporal/temporalchild/child.go":    "the kernel's files",
	"internal/temporal/temporalserver/lock.go":    "the kernel's files",
	"internal/temporal/temporalserver/ports.go":   "the kernel's files",
	"worker-agent/actions/cexec_linux.go":         "resolv.conf",
	"worker-agent/disk/blockdev/attribute.go":     "the kernel's files",
	"worker-agent/disk/efi/efivars_linux.go":      "variables of the firmware",
	"worker-agent/disk/filesys/programs_linux.go": "boot code",
	"worker-agent/disk/sysfs_linux.go":            "the kernel's files",
	"worker-agent/facts/facts_linux.go":           "the kernel's files",
}

// TestS64SecretsAreReadPrivately: a new call of os.ReadFile needs a row above, so that no secret is read without a look at the
// mode of its file.
func TestS64SecretsAreReadPrivately(t *testing.T) {
	unused := maps.Clone(readFiles)
	for _, f := range productFiles(t) {
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok || !isSelector(call, "os", "ReadFile") {
				return true
			}
			delete(unused, f.path)
			if readFiles[f.path] == "" {
				t.Errorf("%s: read a file that holds a secret by durablefile.ReadPrivate; for any other file add a row to readFiles",
					f.set.Position(call.Pos()))
			}
			return true
		})
	}
	if len(unused) > 0 {
		t.Errorf("these files call os.ReadFile no more: %v", slices.Sorted(maps.Keys(unused)))
	}
}
