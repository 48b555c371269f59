package ingot

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// may lists what each package may import: packages of this module by folder,
// other modules by path. The standard library is open to all; _test files and
// the folders in free are not checked. Everything points down this list.
var may = map[string]string{
	"action":    "",
	"inventory": "action",

	"internal/clock":        "",
	"internal/guard":        "",
	"internal/httpserve":    "golang.org/x/sys",
	"internal/keptsocket":   "github.com/coreos/go-systemd/v22 golang.org/x/sys",
	"internal/strictyaml":   "internal/plaintext inventory internal/human go.yaml.in/yaml/v3",
	"internal/machinefile":  "inventory internal/strictyaml",
	"internal/importfile":   "internal/plaintext action inventory internal/machinefile internal/strictyaml template",
	"internal/seed":         "inventory",
	"internal/memlimit":     "",
	"internal/pcap":         "",
	"internal/plaintext":    "",
	"internal/quiet":        "",
	"internal/keyring":      "inventory internal/durable",
	"internal/payloadcodec": "inventory internal/durable go.temporal.io/api go.temporal.io/sdk google.golang.org/protobuf",
	"internal/config":       "inventory internal/sbat internal/strictyaml",
	"internal/dbcopy":       "internal/durable",
	"internal/reserve":      "golang.org/x/sys",
	"internal/sbat":         "internal/plaintext",
	"internal/notify":       "inventory internal/durable internal/identity",
	"internal/diskimage":    "github.com/klauspost/compress github.com/mikelolasagasti/xz",
	"internal/imagefile":    "inventory",
	"internal/provenance":   "inventory aead.dev/minisign",
	"internal/catalog":      "inventory internal/provenance internal/strictyaml",
	"internal/freeport":     "",
	"internal/keypin":       "",
	"internal/human":        "",
	"internal/identity":     "internal/keypin inventory internal/durable",
	"internal/hostnet":      "internal/config",
	"internal/durable":      "",
	"internal/listener":     "internal/config internal/guard internal/httpserve internal/identity internal/keptsocket",

	"internal/endpoint":           "internal/keypin inventory",
	"internal/systems/harvester":  "inventory internal/endpoint internal/strictyaml internal/systems/kubernetes go.yaml.in/yaml/v3",
	"internal/systems/kubernetes": "inventory internal/endpoint go.yaml.in/yaml/v3",
	"internal/systems/talos": "inventory internal/endpoint internal/strictyaml github.com/hashicorp/go-multierror " +
		"github.com/siderolabs/talos/pkg/machinery go.yaml.in/yaml/v3 go.yaml.in/yaml/v4 " +
		"google.golang.org/grpc google.golang.org/protobuf",
	"internal/systems/vyos": "inventory internal/endpoint internal/strictyaml",
	"internal/systems": "inventory internal/endpoint internal/strictyaml internal/systems/harvester " +
		"internal/systems/talos internal/systems/vyos go.yaml.in/yaml/v3",

	"genesis": "inventory internal/strictyaml internal/machinefile internal/systems",

	"template":         "action inventory internal/seed internal/strictyaml github.com/Masterminds/sprig/v3 go.yaml.in/yaml/v3",
	"inventory/sqlite": "internal/plaintext action inventory internal/dbcopy github.com/jmoiron/sqlx github.com/mattn/go-sqlite3",
	"bmc": "internal/keypin internal/clock inventory internal/plaintext github.com/bmc-toolbox/bmclib/v2 github.com/go-logr/logr github.com/jacobweinstock/registrar " +
		"github.com/stmcginnis/gofish",
	"activities": "internal/plaintext action genesis inventory template internal/seed internal/systems go.temporal.io/sdk",
	"workflows":  "action activities genesis inventory internal/strictyaml go.temporal.io/api go.temporal.io/sdk",
	"bootsvc/wire": "inventory internal/clock internal/guard internal/httpserve internal/plaintext github.com/insomniacslk/dhcp golang.org/x/net " +
		"golang.org/x/sync golang.org/x/sys",
	"bootsvc/tftp":       "bootsvc/wire internal/guard internal/httpserve github.com/pin/tftp/v3 golang.org/x/sys",
	"bootsvc/neighbours": "bootsvc/wire inventory internal/guard github.com/insomniacslk/dhcp golang.org/x/sys",
	"bootsvc": "bootsvc/neighbours bootsvc/tftp bootsvc/wire internal/clock action inventory internal/guard internal/httpserve internal/keptsocket internal/plaintext internal/quiet internal/sbat internal/seed " +
		"github.com/insomniacslk/dhcp github.com/pin/tftp/v3 golang.org/x/net golang.org/x/sync " +
		"golang.org/x/sys",
	"metadatasvc": "inventory internal/guard internal/httpserve internal/keptsocket internal/plaintext internal/quiet internal/seed",
	"web":         "",
	"internal/engine": "internal/clock action inventory workflows internal/guard internal/plaintext internal/quiet go.temporal.io/api go.temporal.io/sdk " +
		"golang.org/x/sync",
	"internal/httpapi": "inventory internal/guard go.temporal.io/api github.com/gin-gonic/gin",
	"internal/agentapi": "action inventory internal/engine internal/guard internal/httpapi internal/httpserve " +
		"internal/plaintext internal/quiet github.com/gin-gonic/gin",
	"api": "action genesis internal/catalog internal/diskimage internal/engine internal/guard internal/httpapi " +
		"internal/httpserve internal/imagefile internal/plaintext internal/provenance internal/quiet internal/reserve internal/seed inventory template web workflows " +
		"github.com/gin-gonic/gin",
	"worker-agent/disk/blockdev":   "internal/plaintext",
	"worker-agent/disk/parttable":  "worker-agent/disk/blockdev",
	"worker-agent/disk/fat":        "worker-agent/disk/blockdev github.com/diskfs/go-diskfs",
	"worker-agent/disk/probe":      "action worker-agent/disk/blockdev worker-agent/disk/fat worker-agent/disk/parttable",
	"worker-agent/disk/filesys":    "internal/diskimage worker-agent/disk/blockdev worker-agent/disk/probe golang.org/x/sys",
	"worker-agent/disk/efi":        "internal/plaintext worker-agent/disk/parttable golang.org/x/sys",
	"worker-agent/disk/bootconfig": "",
	"worker-agent/disk":            "action internal/plaintext worker-agent/disk/blockdev worker-agent/disk/parttable worker-agent/disk/probe golang.org/x/sys",
	"worker-agent/fetch":           "internal/clock",
	"worker-agent/facts":           "action internal/plaintext worker-agent/disk worker-agent/disk/blockdev golang.org/x/sys",
	"worker-agent/actions":         "action internal/clock internal/diskimage worker-agent/disk worker-agent/disk/blockdev worker-agent/disk/bootconfig worker-agent/disk/efi worker-agent/disk/fat worker-agent/disk/filesys worker-agent/disk/parttable worker-agent/disk/probe worker-agent/facts worker-agent/fetch github.com/opencontainers/image-spec golang.org/x/sys oras.land/oras-go/v2",
	"worker-agent":                 "internal/keypin action internal/clock internal/plaintext worker-agent/actions worker-agent/disk worker-agent/disk/efi worker-agent/disk/filesys worker-agent/facts worker-agent/fetch",

	"internal/temporalchild": "internal/durable go.temporal.io/api google.golang.org/grpc",
	"internal/archive": "inventory inventory/sqlite internal/config internal/dbcopy internal/durable internal/hostnet " +
		"internal/human internal/identity internal/imagefile internal/keyring internal/reserve internal/temporalchild " +
		"internal/temporalfile golang.org/x/crypto",
	"internal/site": "internal/keypin internal/clock inventory internal/archive internal/config internal/durable internal/guard internal/hostnet " +
		"internal/human internal/identity internal/imagefile internal/keptsocket internal/keyring internal/listener internal/quiet " +
		"internal/reserve golang.org/x/sync",

	"internal/temporalfile": "internal/dbcopy internal/temporalchild modernc.org/sqlite",
	"internal/temporalserver": "internal/dbcopy internal/memlimit internal/temporalchild internal/temporalfile go.temporal.io/server " +
		"go.temporal.io/api github.com/temporalio/ui-server/v2 google.golang.org/grpc google.golang.org/protobuf",

	"internal/tracing": "action bmc bootsvc internal/durable internal/identity inventory go.opentelemetry.io/otel go.opentelemetry.io/proto/otlp go.temporal.io/sdk " +
		"google.golang.org/protobuf",

	"internal/metrics": "bmc bootsvc internal/engine internal/httpserve internal/tracing inventory github.com/prometheus/client_golang",

	"internal/server": "action activities api bmc bootsvc bootsvc/wire inventory inventory/sqlite metadatasvc workflows " +
		"internal/agentapi internal/archive internal/catalog internal/clock internal/config internal/durable internal/endpoint " +
		"internal/engine internal/hostnet internal/human internal/identity internal/imagefile internal/keptsocket internal/keyring " +
		"internal/httpserve internal/listener internal/memlimit internal/metrics internal/notify internal/payloadcodec internal/reserve internal/sbat internal/site internal/systems/harvester " +
		"internal/systems/kubernetes internal/systems/talos internal/systems/vyos internal/temporalchild " +
		"internal/temporalfile internal/tracing go.temporal.io/api go.temporal.io/sdk golang.org/x/sync " +
		"google.golang.org/grpc google.golang.org/protobuf",

	"internal/client": "internal/keypin inventory internal/config internal/durable internal/hostnet internal/human internal/identity internal/strictyaml",

	"internal/doctor": "api bootsvc bootsvc/neighbours inventory internal/catalog internal/client internal/clock internal/config internal/durable internal/hostnet internal/human " +
		"internal/keyring internal/notify internal/reserve internal/sbat internal/server internal/site golang.org/x/sync " +
		"golang.org/x/sys",

	"internal/cli": "action activities api bootsvc bootsvc/neighbours bootsvc/wire genesis inventory template workflows internal/archive " +
		"internal/catalog internal/client internal/config internal/doctor internal/durable internal/hostnet internal/human " +
		"internal/importfile internal/keyring internal/machinefile internal/payloadcodec internal/provenance internal/server internal/site internal/strictyaml " +
		"github.com/spf13/cobra golang.org/x/term",

	"cmd/ingot":        "internal/cli internal/temporalchild internal/temporalserver",
	"cmd/worker-agent": "action worker-agent worker-agent/disk worker-agent/disk/efi worker-agent/disk/filesys worker-agent/facts github.com/insomniacslk/dhcp github.com/vishvananda/netlink golang.org/x/sys",
}

// free may import everything: virtual machines, the tests that run in them, what tests share, and
// the programs that build what is deployed.
var free = []string{"lab", "e2e", "deploy/", "internal/keptsocket/manager", "worker-agent/disk/disktest", "worker-agent/disk/filesystest"}

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
		"inventory", "activities", "workflows", "internal/engine", "api", "internal/server", "internal/site", "internal/cli",
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
