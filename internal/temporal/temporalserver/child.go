package temporalserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ingotmetal/ingot/internal/host/memlimit"
	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
	"github.com/ingotmetal/ingot/internal/temporal/temporalfile"
)

// stopLimit is how long the server may take to stop. Then the process ends itself; two seconds later, the parent would kill it.
const stopLimit = 8 * time.Second

// ChildMain runs the child's side of the protocol of package temporalchild, for the hidden subcommand. The caller passes os.Stdin and
// os.NewFile(temporalchild.ReadyFD, …). ChildMain serves until stdin ends, and then returns nil. If it returns an error, the parent already
// knows the error, so the caller only exits with status 1.
//
// ChildMain changes the whole process: it ignores signals that are meant for the parent, makes new files readable for their owner only, and
// sets the memory limit.
func ChildMain(stdin io.Reader, ready *os.File, stderr io.Writer) error {
	if ready == nil {
		return errors.New("serving Temporal: only ingot serve uses this subcommand")
	}

	if _, err := ready.Stat(); err != nil {
		return fmt.Errorf("serving Temporal: only ingot serve uses this subcommand: %w", err)
	}
	// INT and TERM are for the parent, which stops its workers before this child. PIPE is ignored so that a log reader that has
	// ended does not prevent an orderly stop.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	// SQLite creates its files with the umask. The files contain workflow inputs, which only the owner may read.
	syscall.Umask(0o077)
	// Set the name that ps and top show. By default, it would be the name of the link that was executed.
	_ = os.WriteFile("/proc/self/comm", []byte("ingot-temporal"), 0)

	err := serveChild(stdin, ready, stderr)
	if err != nil {
		var f *temporalchild.Failure
		if !errors.As(err, &f) {
			f = &temporalchild.Failure{Message: err.Error()}
		}
		err = errors.Join(err, temporalchild.WriteReport(ready, temporalchild.Report{Failure: f}))
	}
	return err
}

// garbageRoom is how much garbage, in bytes, this process may hold before the collector runs as often as by default. With the default from
// the start, two hundred runs at once would spend a fifth of their time in garbage collection.
const garbageRoom = 128 << 20

func serveChild(stdin io.Reader, ready *os.File, stderr io.Writer) error {
	var cfg temporalchild.Config
	orders := json.NewDecoder(stdin)
	orders.DisallowUnknownFields()
	if err := orders.Decode(&cfg); err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}

	logger := slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: cfg.LogLevel}))
	// Package log is used only by the UI, which writes how it loads the certificate.
	log.SetFlags(0)
	log.SetOutput(slog.NewLogLogger(logger.Handler(), slog.LevelDebug).Writer())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go memlimit.CollectRarely(ctx, garbageRoom)
	c := &child{cfg: cfg, stdin: stdin, orders: orders, logger: logger, reports: ready}
	go func() {
		// carryOutOrders returns once the parent has closed the pipe or has ended.
		c.carryOutOrders(ctx)
		time.AfterFunc(stopLimit, func() {
			logger.Error("temporal server hangs while it stops; ending its process", "after", stopLimit)
			os.Exit(1)
		})
		cancel()
	}()

	var reportErr error
	report := func(r temporalchild.Report) {
		if err := c.report(r); err != nil {
			reportErr = errors.Join(reportErr, err)
			cancel()
		}
	}

	err := Run(ctx, cfg, logger,
		func(with string) { report(temporalchild.Report{Busy: &temporalchild.Busy{With: with}}) },
		func(srv temporalchild.Server) { report(temporalchild.Report{Ready: &srv}) })
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil
	}

	return errors.Join(describeFullDisk(err, cfg.File), reportErr)
}

// describeFullDisk turns the error of a full disk into a *Failure with a remedy. It returns other errors unchanged.
func describeFullDisk(err error, file string) error {
	if err == nil {
		return nil
	}

	// Match the text of SQLITE_FULL: the server does not pass on the typed error.
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) &&
		!strings.Contains(err.Error(), "database or disk is full") {
		return err
	}

	return &temporalchild.Failure{
		Message: fmt.Sprintf("the disk of %q is full: %v", file, err),
		Remedy:  "free disk space (ingot image prune removes images that nothing uses); Ingot tries again until there is space",
	}
}

// child is this process in its role in the protocol with its parent.
type child struct {
	cfg    temporalchild.Config
	stdin  io.Reader
	orders *json.Decoder // reads stdin
	logger *slog.Logger

	mu      sync.Mutex
	reports io.Writer // the pipe to the parent; each write is one line
}

func (c *child) report(r temporalchild.Report) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return temporalchild.WriteReport(c.reports, r)
}

// carryOutOrders runs the parent's orders until the pipe ends. Each order runs in its own goroutine, so that the end of the
// pipe is noticed at once.
func (c *child) carryOutOrders(ctx context.Context) {
	for {
		var o temporalchild.Order
		if err := c.orders.Decode(&o); err != nil {
			if !errors.Is(err, io.EOF) {
				c.logger.Warn("reading an order of the parent process", "err", err)
				_, _ = io.Copy(io.Discard, c.stdin) // wait for the end of the pipe
			}
			return
		}
		if o.Backup == nil {
			continue
		}
		go func() {
			done := temporalchild.BackupDone{ID: o.Backup.ID}
			if err := temporalfile.TakeBackup(ctx, c.cfg.File, *o.Backup); err != nil {
				done.Error = describeFullDisk(err, o.Backup.File).Error()
			}
			if err := c.report(temporalchild.Report{Backup: &done}); err != nil {
				c.logger.Warn("reporting the result of a backup", "err", err)
			}
		}()
	}
}
