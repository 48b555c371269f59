package doctor

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/host/diskreserve"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/images/catalog"
	"github.com/ingotmetal/ingot/internal/observe/notify"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/internal/server"
	"github.com/ingotmetal/ingot/internal/text/human"
)

func checkKey(_ context.Context, d *host) []Finding {
	_, err := keyring.Load(d.cfg.KeyFile)
	_, noData := os.Stat(server.InventoryFile(d.cfg))
	switch {
	case err == nil:
		return []Finding{ok("only the owner of %s can read it", d.cfg.KeyFile)}
	case errors.Is(err, fs.ErrNotExist) && noData != nil:
		return []Finding{warn("%s does not exist yet", d.cfg.KeyFile).remedy("ingot init")}
	case errors.Is(err, fs.ErrNotExist):
		return []Finding{fail("%s is missing, and stored secrets cannot be read without it", d.cfg.KeyFile).remedy(
			"restore it from a copy; if it is lost, run ingot secret reset")}
	}

	return []Finding{fail("%v", err)}
}

func checkToken(_ context.Context, d *host) []Finding {
	switch b, err := durablefile.ReadPrivate(d.cfg.TokenFile); {
	case errors.Is(err, fs.ErrNotExist):
		return []Finding{warn("%s does not exist yet", d.cfg.TokenFile)}
	case errors.Is(err, fs.ErrPermission):
		return []Finding{fail("%v", err).remedy("run this as the user of ingot serve")}
	case err != nil:
		return []Finding{fail("%s: %v", d.cfg.TokenFile, err)}
	case len(strings.TrimSpace(string(b))) < 32:
		return []Finding{fail("the token in %s is shorter than 32 characters", d.cfg.TokenFile).remedy(
			"remove the file, then run ingot init")}
	}

	return []Finding{ok("%s exists", d.cfg.TokenFile)}
}

// checkInventory checks the whole database, within a time limit. A running server may have the database
// open. checkInventory returns nil if there is no database, which is normal before the first "ingot serve".
func checkInventory(ctx context.Context, d *host) []Finding {
	switch err := server.CheckInventory(ctx, d.cfg); {
	case err == nil:
		return []Finding{ok("%s is sound", server.InventoryFile(d.cfg))}
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, server.ErrUnchecked):
		return []Finding{warn("%v", err).remedy("ingot backup")}
	case errors.Is(err, server.ErrDamaged):
		return []Finding{fail("%v", err).remedy(
			"stop ingot serve, move " + d.cfg.DataDir + " away, then run ingot restore FILE")}
	default:
		return []Finding{warn("%v", err)}
	}
}

// existingParent returns dir if it exists, otherwise its nearest existing parent.
func existingParent(dir string) string {
	for dir != "/" && dir != "." {
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

func checkSpace(_ context.Context, d *host) []Finding {
	out := checkDirectory(d.cfg, d.cfg.DataDir, "data")
	if dir := d.cfg.ImageDir(); !strings.HasPrefix(dir, d.cfg.DataDir+"/") {
		out = append(out, checkDirectory(d.cfg, dir, "images")...)
	}
	return out
}

func checkDirectory(cfg config.Config, dir, what string) (out []Finding) {
	at := existingParent(dir)
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return []Finding{fail("reading the free space of %s: %v", at, err)}
	}

	free, least := int64(st.Bavail)*st.Bsize, cfg.MinFree<<20
	switch text := human.Size(free) + " free for " + what + " in " + dir; {
	case free < least:
		out = append(out, fail("%s; at least %s must be free", text, human.Size(least)))
	case free < 5*least:
		out = append(out, warn("%s; new runs are refused below %s", text, human.Size(least)))
	default:
		out = append(out, ok("%s", text))
	}
	if slices.Contains([]int64{unix.NFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC}, int64(st.Type)) {
		out = append(out, fail("%s is on a network file system, which can damage databases", dir).remedy(
			"put data_dir on a local disk"))
	}
	if err := unix.Access(at, unix.W_OK); err != nil {
		out = append(out, fail("%s is not writable: %v", at, err).remedy(
			"chown it to the user of ingot serve, or run ingot doctor as that user"))
	}

	return out
}

// checkReserve checks that the reserve exists, which is disk space that lets open runs go on when the disk is full.
func checkReserve(_ context.Context, d *host) []Finding {
	if d.cfg.Reserve == 0 {
		return []Finding{warn("no disk space is reserved with which open runs could end on a full disk")}
	}

	r := diskreserve.Look(d.cfg.DataDir, d.cfg.Reserve<<20)
	size := human.Size(r.Size)
	switch {
	case r.Held:
		return []Finding{ok("%s are reserved, so that open runs can end on a full disk", size)}
	case existingParent(r.Path) != r.Path:
		return []Finding{ok("ingot serve reserves %s when it first starts", size)}
	}

	return []Finding{fail("the reserve of %s was released because the disk was full: new runs are refused", size).remedy(
		diskreserve.Remedy)}
}

// checkPowerCommands checks that the programs of power.commands can be executed.
func checkPowerCommands(_ context.Context, d *host) (out []Finding) {
	for _, name := range slices.Sorted(maps.Keys(d.cfg.Power.Commands)) {
		out = append(out, checkPowerCommand(name, d.cfg.Power.Commands[name]))
	}
	return out
}

func checkPowerCommand(name string, c config.PowerCommand) Finding {
	for _, argv := range [][]string{c.On, c.Off, c.Status} {
		st, err := os.Stat(argv[0])
		if err != nil {
			return fail("%s: %v", name, err).remedy("correct power.commands." + name)
		}
		if st.IsDir() || st.Mode()&0o111 == 0 {
			return fail("%s: %s is not executable", name, argv[0]).remedy("chmod +x " + argv[0])
		}
	}

	return ok("%s can be run", name)
}

// checkTemporalAccess warns if other programs can probably reach the embedded Temporal: on a server with relay_only
// (such as a NAS) and in Kubernetes, unless clients need a certificate.
func checkTemporalAccess(_ context.Context, d *host) []Finding {
	t := d.cfg.Temporal
	shared := d.cfg.Netboot.RelayOnly || os.Getenv("KUBERNETES_SERVICE_HOST") != ""
	switch {
	case t.Address != "":
	case t.MutualTLS:
		return []Finding{ok("clients need the certificate %s; Temporal's UI is off", d.cfg.TemporalIdentity())}
	case shared:
		at := config.Join("127.0.0.1", t.Port)
		return []Finding{warn("every program on this host can start and end workflows at %s", at)}
	}

	return nil
}

// checkBackup checks that the server can store backups.
func checkBackup(_ context.Context, d *host) []Finding {
	if d.cfg.Backup.Dir == "" {
		return []Finding{warn("no backup is made automatically").remedy(
			"set backup.dir and backup.passphrase_file in the configuration, then start ingot-backup.timer: docs/backup.md")}
	}
	if _, err := server.StoragePassphrase(d.cfg.Backup); err != nil {
		return []Finding{fail("%v", err).remedy("correct backup in the configuration, then run ingot backup run")}
	}
	return []Finding{ok("ingot backup run stores backups in %s", d.cfg.Backup.Dir)}
}

// checkCatalog checks the file images.catalog, if it is configured: the server does not start with an invalid catalog.
func checkCatalog(_ context.Context, d *host) []Finding {
	path := d.cfg.Images.Catalog
	if path == "" {
		return nil
	}
	if _, err := catalog.Read(path); err != nil {
		return []Finding{fail("images.catalog: %v", err)}
	}
	return []Finding{ok("%s can be read", path)}
}

// checkNotify checks the configuration of the notices that are sent when a run needs an operator.
func checkNotify(_ context.Context, d *host) []Finding {
	n := d.cfg.Notify
	if n.URL == "" {
		return []Finding{warn("no notice is sent when a run needs an operator: only ingot status shows it").remedy(
			"set notify in the configuration, then run ingot notify test")}
	}

	s, err := notify.New(notify.Config{URL: n.URL, Format: n.Format, SecretFile: n.SecretFile, CAFile: n.TLSCA})
	if err == nil {
		err = s.Check()
	}
	if err != nil {
		return []Finding{fail("%v", err)}
	}

	return []Finding{ok("%s is notified when a run needs an operator", s.Receiver())}
}

// checkClock checks that the kernel's clock is synchronized.
func checkClock(context.Context, *host) []Finding {
	synchronized, err := clock.Synchronized()
	now := time.Now().UTC().Format(time.RFC3339)
	switch {
	case err != nil:
		return []Finding{warn("asking the kernel for the state of the clock: %v", err).remedy("timedatectl status")}
	case !synchronized:
		return []Finding{warn("not synchronised; it shows %s", now)}
	}

	return []Finding{ok("synchronised; it shows %s", now)}
}
