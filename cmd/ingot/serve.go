package main

import (
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/server"
	"github.com/ingotmetal/ingot/internal/temporalchild"
)

func serveCmd() *cobra.Command {
	var file, level string
	c := &cobra.Command{
		Use: "serve", Short: "Run the server", Args: cobra.NoArgs,
		Long: `Run the server: API and page, workflows, and, on the interfaces that the
configuration names, DHCP, TFTP, boot files, images, metadata and agents.

Without a configuration it serves operators on 127.0.0.1:8080 and nothing else.`,
		Example: "  ingot init && ingot serve\n  ingot serve --config /etc/ingot/ingot.yaml --log-level debug",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(file, cmd.Flags().Changed("config"))
			if err != nil {
				return err
			}
			var l slog.Level
			if err := l.UnmarshalText([]byte(level)); err != nil {
				return usage("--log-level %q is none of debug, info, warn, error", level)
			}
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: l}))
			return server.Serve(cmd.Context(), server.Options{Config: cfg, ConfigFile: file, Version: build(), Log: log, Out: cmd.OutOrStdout()})
		},
	}
	c.Flags().StringVarP(&file, "config", "c", config.DefaultFile(), "configuration file")
	c.Flags().StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return c
}

// temporalChildCmd is the hidden subcommand that is the embedded server.
func temporalChildCmd() *cobra.Command {
	return &cobra.Command{
		Use: temporalchild.Subcommand, Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return server.RunTemporalChild()
		},
	}
}
