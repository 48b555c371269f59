package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/cli/host"
)

// writeManual writes a manual page for each command, and shell completions for bash, zsh and fish, to dir.
func writeManual(version string, made time.Time, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}

	// Show the default paths of the system service, and not of the user who makes the release.
	if err := errors.Join(os.Setenv("XDG_CONFIG_HOME", "/etc"), os.Setenv("XDG_STATE_HOME", "/var/lib")); err != nil {
		return err
	}
	root := cli.Root(version, host.AddCommands)
	omitTime(root)
	header := &doc.GenManHeader{Section: "1", Date: &made, Source: "Ingot " + version, Manual: "Ingot"}
	if err := doc.GenManTree(root, header, dir); err != nil {
		return err
	}

	for name, write := range map[string]func(io.Writer) error{
		"bash": func(w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		"zsh":  root.GenZshCompletion,
		"fish": func(w io.Writer) error { return root.GenFishCompletion(w, true) },
	} {
		if err := writeFile(filepath.Join(dir, name), write); err != nil {
			return err
		}
	}
	return nil
}

// omitTime makes the manual pages of cmd and its subcommands omit the line with the time of generation.
func omitTime(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true
	for _, c := range cmd.Commands() {
		omitTime(c)
	}
}

func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
