package ingot

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// may lists what each package may import: packages of this module by folder,
// other modules by path. The standard library is open to all; _test files and
// the folders in free are not checked. Everything points down this list.
var may = map[string]string{
	"internal/problem":        "",
	"internal/text/plaintext": "",
	"internal/text/human":     "internal/problem internal/text/plaintext",
	"internal/selector":       "internal/problem",
	"action":                  "",
	"inventory":               "action internal/problem internal/selector internal/text/human",

	"internal/host/clock":            "",
	"internal/netserve/guard":        "",
	"internal/netserve/httpserve":    "golang.org/x/sys",
	"internal/netserve/keptsocket":   "internal/host/clock github.com/coreos/go-systemd/v22 golang.org/x/sys",
	"internal/documents/strictyaml":  "internal/problem internal/text/human internal/text/plaintext go.yaml.in/yaml/v3",
	"internal/documents/machinefile": "inventory internal/documents/strictyaml",
	"internal/documents/mergepatch":  "",
	"internal/documents/importfile":  "internal/text/plaintext action inventory internal/documents/machinefile internal/documents/strictyaml template",
	"internal/documents/cloudinit":   "inventory",
	"internal/host/memlimit":         "",
	"internal/netserve/quietlog":     "",
	"internal/secrets/keyring":       "inventory internal/host/durablefile",
	"internal/temporal/payloadcodec": "inventory internal/host/durablefile go.temporal.io/api go.temporal.io/sdk google.golang.org/protobuf",
	"workflows/contract":             "action internal/selector inventory",
	"internal/apitypes":              "inventory workflows/contract",
	"internal/config":                "inventory internal/images/sbat internal/documents/strictyaml",
	"internal/backup/dbcopy":         "internal/host/durablefile",
	"internal/host/diskreserve":      "golang.org/x/sys",
	"internal/images/sbat":           "internal/text/plaintext",
	"internal/observe/notify":        "internal/host/clock internal/httpclient inventory internal/host/durablefile internal/secrets/identity",
	"internal/images/diskimage":      "github.com/klauspost/compress github.com/mikelolasagasti/xz",
	"internal/images/imagefile":      "inventory",
	"internal/images/container":      "inventory internal/images/diskimage github.com/opencontainers/go-digest github.com/opencontainers/image-spec oras.land/oras-go/v2",
	"internal/images/provenance":     "inventory aead.dev/minisign",
	"internal/images/catalog":        "inventory internal/images/provenance internal/documents/strictyaml",
	"internal/secrets/keypin":        "",
	"internal/httpclient":            "",
	"internal/secrets/identity":      "internal/secrets/keypin inventory internal/host/durablefile",
	"internal/host/hostnet":          "internal/config",
	"internal/host/durablefile":      "",
	"internal/netserve/listener":     "internal/config internal/netserve/guard internal/netserve/httpserve internal/secrets/identity internal/netserve/keptsocket",

	"internal/systems/endpoint":   "internal/text/plaintext internal/httpclient internal/secrets/keypin inventory",
	"internal/systems/harvester":  "inventory internal/systems/endpoint internal/documents/strictyaml internal/systems/kubernetes go.yaml.in/yaml/v3",
	"internal/systems/kubernetes": "inventory internal/systems/endpoint go.yaml.in/yaml/v3",
	"internal/systems/talos": "inventory internal/systems/endpoint internal/documents/strictyaml github.com/hashicorp/go-multierror " +
		"github.com/siderolabs/talos/pkg/machinery go.yaml.in/yaml/v3 go.yaml.in/yaml/v4 " +
		"google.golang.org/grpc google.golang.org/protobuf",
	"internal/systems/vyos": "inventory internal/systems/endpoint internal/documents/strictyaml",
	"internal/systems": "inventory internal/systems/endpoint internal/documents/strictyaml internal/systems/harvester " +
		"internal/systems/talos internal/systems/vyos go.yaml.in/yaml/v3",

	"genesis": "inventory internal/documents/strictyaml internal/documents/machinefile",

	"template":         "action inventory internal/documents/cloudinit internal/documents/strictyaml internal/text/human github.com/Masterminds/sprig/v3 go.yaml.in/yaml/v3",
	"inventory/sqlite": "internal/text/plaintext action internal/selector inventory internal/backup/dbcopy github.com/jmoiron/sqlx github.com/mattn/go-sqlite3",
	"bmc": "internal/httpclient internal/secrets/keypin internal/host/clock inventory internal/text/plaintext github.com/bmc-toolbox/bmclib/v2 github.com/go-logr/logr " +
		"github.com/stmcginnis/gofish",
	"activities": "internal/text/plaintext action genesis internal/selector inventory template internal/documents/cloudinit internal/systems go.temporal.io/sdk",
	"workflows":  "action activities genesis inventory workflows/contract internal/documents/strictyaml go.temporal.io/api go.temporal.io/sdk",
	"bootsvc/wire": "inventory internal/host/clock internal/netserve/guard internal/netserve/httpserve internal/text/plaintext github.com/insomniacslk/dhcp golang.org/x/net " +
		"golang.org/x/sync golang.org/x/sys",
	"bootsvc/tftp":       "bootsvc/wire internal/netserve/guard internal/netserve/httpserve github.com/pin/tftp/v3 golang.org/x/sys",
	"bootsvc/neighbours": "bootsvc/wire inventory internal/netserve/guard github.com/insomniacslk/dhcp golang.org/x/sys",
	"bootsvc/dhcp": "bootsvc/neighbours bootsvc/wire internal/host/clock internal/netserve/guard internal/netserve/httpserve inventory " +
		"github.com/insomniacslk/dhcp golang.org/x/net golang.org/x/sync golang.org/x/sys",
	"bootsvc": "bootsvc/dhcp bootsvc/neighbours bootsvc/tftp bootsvc/wire internal/host/clock action inventory internal/netserve/guard internal/netserve/httpserve internal/netserve/keptsocket internal/text/plaintext internal/netserve/quietlog internal/images/sbat internal/documents/cloudinit " +
		"github.com/insomniacslk/dhcp github.com/pin/tftp/v3 golang.org/x/sync",
	"metadatasvc": "inventory internal/netserve/guard internal/netserve/httpserve internal/netserve/keptsocket internal/text/plaintext internal/netserve/quietlog internal/documents/cloudinit",
	"web":         "",
	"internal/engine": "internal/apitypes internal/host/clock action inventory workflows workflows/contract internal/netserve/guard internal/text/plaintext internal/netserve/quietlog go.temporal.io/api go.temporal.io/sdk " +
		"golang.org/x/sync",
	"internal/httpapi": "inventory internal/netserve/guard go.temporal.io/api github.com/gin-gonic/gin",
	"internal/agentapi": "action inventory internal/engine internal/netserve/guard internal/httpapi internal/netserve/httpserve " +
		"internal/text/plaintext internal/netserve/quietlog github.com/gin-gonic/gin",
	"api": "action genesis internal/apitypes internal/selector workflows/contract internal/host/durablefile internal/images/catalog internal/images/container internal/images/diskimage internal/engine internal/netserve/guard internal/httpapi " +
		"internal/netserve/httpserve internal/images/imagefile internal/text/plaintext internal/images/provenance internal/netserve/quietlog internal/host/diskreserve internal/documents/cloudinit inventory template web workflows " +
		"internal/documents/importfile internal/documents/machinefile internal/documents/mergepatch internal/documents/strictyaml internal/systems " +
		"github.com/gin-gonic/gin",
	"worker-agent/disk/blockdev":   "internal/text/plaintext",
	"worker-agent/disk/parttable":  "worker-agent/disk/blockdev",
	"worker-agent/disk/fat":        "worker-agent/disk/blockdev github.com/diskfs/go-diskfs",
	"worker-agent/disk/probe":      "action worker-agent/disk/blockdev worker-agent/disk/fat worker-agent/disk/parttable",
	"worker-agent/disk/filesys":    "internal/images/diskimage worker-agent/disk/blockdev worker-agent/disk/probe golang.org/x/sys",
	"worker-agent/disk/efi":        "internal/text/plaintext worker-agent/disk/parttable golang.org/x/sys",
	"worker-agent/disk/bootconfig": "",
	"worker-agent/disk":            "action internal/text/plaintext worker-agent/disk/blockdev worker-agent/disk/parttable worker-agent/disk/probe golang.org/x/sys",
	"worker-agent/fetch":           "internal/host/clock",
	"worker-agent/container": "action internal/images/diskimage internal/text/human worker-agent/disk/blockdev worker-agent/disk/filesys " +
		"worker-agent/disk/parttable worker-agent/fetch github.com/opencontainers/image-spec github.com/opencontainers/runtime-spec golang.org/x/sys",
	"worker-agent/facts":   "action internal/text/plaintext worker-agent/disk worker-agent/disk/blockdev golang.org/x/sys",
	"worker-agent/actions": "action internal/httpclient internal/host/clock internal/images/diskimage worker-agent/container worker-agent/disk worker-agent/disk/blockdev worker-agent/disk/bootconfig worker-agent/disk/efi worker-agent/disk/fat worker-agent/disk/filesys worker-agent/disk/parttable worker-agent/disk/probe worker-agent/facts worker-agent/fetch github.com/opencontainers/image-spec golang.org/x/sys oras.land/oras-go/v2",
	"worker-agent":         "internal/httpclient internal/secrets/keypin action internal/host/clock internal/text/plaintext worker-agent/actions worker-agent/container worker-agent/disk worker-agent/disk/efi worker-agent/disk/filesys worker-agent/facts worker-agent/fetch",

	"internal/temporal/temporalchild": "internal/host/clock internal/host/durablefile go.temporal.io/api google.golang.org/grpc",
	"internal/backup": "inventory inventory/sqlite internal/config internal/backup/dbcopy internal/host/durablefile internal/host/hostnet " +
		"internal/text/human internal/secrets/identity internal/images/imagefile internal/secrets/keyring internal/host/diskreserve internal/temporal/temporalchild " +
		"internal/temporal/temporalfile golang.org/x/crypto",
	"internal/siterole": "internal/httpclient internal/secrets/keypin internal/host/clock inventory internal/backup internal/config internal/host/durablefile internal/netserve/guard internal/host/hostnet " +
		"internal/text/human internal/secrets/identity internal/images/imagefile internal/netserve/keptsocket internal/secrets/keyring internal/netserve/listener internal/netserve/quietlog " +
		"internal/host/diskreserve golang.org/x/sync",

	"internal/temporal/temporalfile": "internal/backup/dbcopy internal/temporal/temporalchild modernc.org/sqlite",
	"internal/temporal/temporalserver": "internal/backup/dbcopy internal/host/clock internal/host/durablefile internal/host/memlimit internal/temporal/temporalchild internal/temporal/temporalfile go.temporal.io/server " +
		"go.temporal.io/api github.com/labstack/echo/v4 github.com/temporalio/ui-server/v2 golang.org/x/sync google.golang.org/grpc google.golang.org/protobuf",

	"internal/observe/tracing": "internal/httpclient action bmc bootsvc internal/host/durablefile internal/secrets/identity inventory go.opentelemetry.io/otel go.opentelemetry.io/proto/otlp go.temporal.io/sdk " +
		"google.golang.org/protobuf",

	"internal/observe/metrics": "internal/apitypes bmc bootsvc internal/engine internal/netserve/httpserve internal/observe/tracing inventory github.com/prometheus/client_golang",

	"internal/server": "internal/apitypes internal/netserve/guard internal/netserve/quietlog action activities api bmc bootsvc bootsvc/wire inventory inventory/sqlite metadatasvc workflows " +
		"internal/agentapi internal/backup internal/images/catalog internal/host/clock internal/config internal/host/durablefile internal/systems/endpoint " +
		"internal/engine internal/host/hostnet internal/text/human internal/secrets/identity internal/images/imagefile internal/netserve/keptsocket internal/secrets/keyring " +
		"internal/httpclient internal/netserve/httpserve internal/netserve/listener internal/host/memlimit internal/observe/metrics internal/observe/notify internal/temporal/payloadcodec internal/host/diskreserve internal/images/sbat internal/siterole internal/systems/harvester " +
		"internal/systems/kubernetes internal/systems/talos internal/systems/vyos internal/temporal/temporalchild " +
		"internal/temporal/temporalfile internal/observe/tracing go.temporal.io/api go.temporal.io/sdk golang.org/x/sync golang.org/x/sys " +
		"google.golang.org/grpc google.golang.org/protobuf",

	"internal/client": "internal/httpclient internal/secrets/keypin inventory internal/config internal/host/durablefile internal/host/hostnet internal/text/human internal/documents/strictyaml",

	"internal/doctor": "action internal/httpclient bootsvc internal/apitypes bootsvc/neighbours inventory internal/images/catalog internal/client internal/host/clock internal/config internal/host/durablefile internal/host/hostnet internal/text/human " +
		"internal/secrets/keyring internal/observe/notify internal/host/diskreserve internal/images/sbat internal/server internal/siterole golang.org/x/sync " +
		"golang.org/x/sys",

	"internal/cli": "action genesis internal/apitypes internal/selector inventory template workflows/contract internal/images/catalog internal/client internal/config " +
		"internal/host/durablefile internal/text/human internal/documents/importfile internal/documents/machinefile internal/images/provenance " +
		"internal/documents/strictyaml internal/documents/mergepatch github.com/spf13/cobra github.com/spf13/pflag golang.org/x/sys golang.org/x/term " +
		"k8s.io/client-go",
	"internal/cli/host": "action bootsvc bootsvc/neighbours inventory internal/backup internal/cli internal/client internal/config internal/doctor " +
		"internal/host/durablefile internal/host/hostnet internal/secrets/keyring internal/server internal/siterole internal/systems " +
		"internal/temporal/payloadcodec internal/text/human github.com/spf13/cobra",

	"cmd/ingot-client": "internal/cli",
	"cmd/ingot":        "internal/cli internal/cli/host internal/temporal/temporalchild internal/temporal/temporalserver",
	"cmd/worker-agent": "action worker-agent worker-agent/container worker-agent/disk worker-agent/disk/efi worker-agent/disk/filesys worker-agent/facts github.com/insomniacslk/dhcp github.com/vishvananda/netlink golang.org/x/sys",
}

// free may import everything: virtual machines, the tests that run in them, what tests share, and
// the programs that build what is deployed.
var free = []string{
	"lab",
	"e2e",
	"deploy/",
	"bootsvc/tftp/tftptest",
	"worker-agent/disk/disktest",
	"worker-agent/disk/filesystest",
}

const module = "github.com/ingotmetal/ingot/"

func TestImports(t *testing.T) {
	used := map[string]bool{} // "package import" of those that the list allows
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && (strings.HasPrefix(d.Name(), ".") && file != "." || d.Name() == "node_modules") {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		pkg := filepath.Dir(file)
		for _, f := range free {
			if strings.HasPrefix(pkg, f) {
				return nil
			}
		}
		allowed, ok := may[pkg]
		if !ok && pkg != "." {
			t.Errorf("%s: new package, say in this test what it may import", pkg)
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
	imports:
		for _, spec := range f.Imports {
			full, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			path := strings.TrimPrefix(full, module)
			if first, _, _ := strings.Cut(path, "/"); path == full && !strings.Contains(first, ".") {
				continue // standard library
			}
			for _, a := range strings.Fields(allowed) {
				if path == a || strings.HasPrefix(path, a+"/") && strings.Contains(a, ".") {
					used[pkg+" "+a] = true
					continue imports
				}
			}
			t.Errorf("%s: package %s must not import %s", file, pkg, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for pkg, allowed := range may {
		for _, a := range strings.Fields(allowed) {
			if !used[pkg+" "+a] {
				t.Errorf("%s: nothing in it imports %s any more, take that off the list", pkg, a)
			}
		}
	}
}

// serverOnly are the packages, and what is below them, that a client of the API must not need: it is built without cgo, and
// stays small.
var serverOnly = []string{
	"github.com/gin-gonic/gin",
	"github.com/mattn/go-sqlite3",
	"github.com/siderolabs/talos",
	"go.temporal.io/sdk",
	"google.golang.org/grpc",
	"modernc.org/sqlite",
	module + "api",
	module + "bootsvc",
	module + "internal/backup",
	module + "internal/server",
	module + "internal/siterole",
	module + "internal/systems",
	module + "inventory/sqlite",
}

// TestClientNeedsNoServer: the client-only program has no part of the server.
func TestClientNeedsNoServer(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/ingot-client").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, pkg := range strings.Fields(string(out)) {
		for _, x := range serverOnly {
			if pkg == x || strings.HasPrefix(pkg, x+"/") {
				t.Errorf("cmd/ingot-client reaches %s", pkg)
			}
		}
	}
}

// TestWorkflowTypesStandOnce: the name of a workflow's type is written in one
// place, which records, activities and workflows share.
func TestWorkflowTypesStandOnce(t *testing.T) {
	const home = "inventory/workflow.go"
	types := map[string]string{}
	found := map[string]bool{}
	literals := func(file string, each func(value string)) {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if v, err := strconv.Unquote(l.Value); err == nil {
					each(v)
				}
			}
			return true
		})
	}
	for _, name := range []string{"Provision", "Reprovision", "Decommission", "Inspect", "BMCJob", "Recover", "Migrate", "Genesis"} {
		types[name] = home
	}
	for _, pkg := range []string{
		"inventory", "activities", "workflows", "internal/engine", "api", "internal/server", "internal/siterole", "internal/cli", "internal/cli/host",
	} {
		files, err := filepath.Glob(pkg + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			literals(file, func(v string) {
				switch where, known := types[v]; {
				case known && where == file && !found[v]:
					found[v] = true
				case known:
					t.Errorf("%s: %q is written here, too: use what %s calls it", file, v, where)
				}
			})
		}
	}
	for name := range types {
		if !found[name] {
			t.Errorf("%s: the type %s is not there", home, name)
		}
	}
}
