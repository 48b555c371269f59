package temporalserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/ingotmetal/ingot/internal/temporalchild"
)

// stopLimit ends a server that hangs in its stop; the parent would kill it two seconds later.
const stopLimit = 8 * time.Second

// maxConfigSize limits the line with the configuration, bytes.
const maxConfigSize = 64 << 10

// ChildMain is the child's side of the protocol of package temporalchild, for the hidden subcommand:
// stdin is os.Stdin, ready is os.NewFile(temporalchild.ReadyFD, …). It serves until stdin ends and
// returns nil then. Its error has been reported to the parent already; the process should just exit
// with status 1.
//
// It changes the whole process: signals that are meant for the parent are ignored, files are made for the
// owner alone, and the memory limit is set.
func ChildMain(stdin io.Reader, ready *os.File, stderr io.Writer) error {
	if ready == nil {
		return errors.New("serving Temporal: this subcommand is for ingot serve, not for people")
	}
	if _, err := ready.Stat(); err != nil {
		return fmt.Errorf("serving Temporal: this subcommand is for ingot serve, not for people: %w", err)
	}
	// INT and TERM go to the parent, which stops its workers before it ends us. PIPE: the log's reader
	// may be dead, which must not stop an orderly end.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	// SQLite makes its files with the umask's permissions, and workflow inputs are nobody else's business.
	syscall.Umask(0o077)
	// For ps and top, which would show the name of the link that was executed; nothing depends on it.
	_ = os.WriteFile("/proc/self/comm", []byte("ingot-temporal"), 0)

	err := serveChild(stdin, ready, stderr)
	if err != nil {
		var f *temporalchild.Failure
		if !errors.As(err, &f) {
			f = &temporalchild.Failure{Kind: temporalchild.KindServer, Message: err.Error()}
		}
		err = errors.Join(err, temporalchild.WriteReport(ready, temporalchild.Report{Failure: f}))
	}
	return err
}

func serveChild(stdin io.Reader, ready *os.File, stderr io.Writer) error {
	in := bufio.NewReader(stdin)
	cfg, err := readConfig(in)
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: cfg.LogLevel}))
	if cfg.MemoryLimit > 0 {
		// Below the limit the collector is mostly left out: two hundred runs at once
		// spend a fifth of their time in it otherwise.
		debug.SetMemoryLimit(cfg.MemoryLimit)
		if os.Getenv("GOGC") == "" {
			debug.SetGCPercent(500)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	answers := &answers{to: ready}
	go func() {
		// This returns when the parent closes the pipe, or is dead.
		obey(ctx, in, cfg, answers, logger)
		time.AfterFunc(stopLimit, func() {
			logger.Error("temporal server hangs in its stop and is ended", "after", stopLimit)
			os.Exit(1)
		})
		cancel()
	}()

	var reportErr error
	report := func(r temporalchild.Report) {
		if err := answers.write(r); err != nil {
			reportErr = errors.Join(reportErr, err)
			cancel()
		}
	}
	err = Run(ctx, cfg, logger, func(with string) { report(temporalchild.Report{Busy: &temporalchild.Busy{With: with}}) },
		func(srv temporalchild.Server) { report(temporalchild.Report{Ready: &srv}) })
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil
	}
	err = noRoom(err, cfg.File)
	return errors.Join(err, reportErr)
}

func readConfig(in *bufio.Reader) (temporalchild.Config, error) {
	var cfg temporalchild.Config
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxConfigSize {
			return cfg, errors.New("reading the configuration: the line is too long")
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return cfg, fmt.Errorf("reading the configuration: %w", err)
		}
		break
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&cfg); err != nil {
		return cfg, fmt.Errorf("reading the configuration: %w", err)
	}
	return cfg, nil
}

// noRoom makes an error of a full disk one for a person.
func noRoom(err error, file string) error {
	if err == nil {
		return nil
	}
	// The words are SQLite's for SQLITE_FULL: the server hands them on without the error that had them.
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) && !strings.Contains(err.Error(), "database or disk is full") {
		return err
	}
	return &temporalchild.Failure{
		Kind:    temporalchild.KindSpace,
		Message: fmt.Sprintf("the disk of %q is full: %v", file, err),
		Remedy:  "make room (ingot image prune removes images that nothing uses); this is tried again until then",
	}
}
