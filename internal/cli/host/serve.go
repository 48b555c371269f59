package host

import (
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/server"
)

func serveCommand(o *cli.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the server", Args: cobra.NoArgs,
		Long: `Run the server: the API, the web page and the workflows. On the interfaces that the
configuration names, the server also answers machines and their agents, with DHCP, TFTP,
boot files, images and metadata.

Without a configuration, the server answers only operators, on 127.0.0.1:8080.`,
		Example: "  ingot init && ingot serve\n  ingot serve --config /etc/ingot/ingot.yaml --log-level debug",
	}

	file := cmd.Flags().StringP("config", "c", config.DefaultFile(), "configuration file")
	level := cmd.Flags().String("log-level", "info", "lowest level that is logged: debug, info, warn or error")
	format := cmd.Flags().String("log-format", server.LogText, "format of the log: text or json; docs/monitoring.md lists the keys")

	return o.NewCommand(cmd, func(c *cli.Call) error {
		cfg, err := config.Load(*file, c.Flags().Changed("config"))
		if err != nil {
			return err
		}

		var l slog.Level
		if err := l.UnmarshalText([]byte(*level)); err != nil {
			return cli.UsageError("invalid --log-level %q; must be one of debug, info, warn, error", *level)
		}

		log, err := server.NewLog(c.ErrOrStderr(), *format, l)
		if err != nil {
			return err
		}

		out := c.OutOrStdout()
		if *format == server.LogJSON {
			out = nil // no plain text in the output: the journal merges it with the log, and readers of the log parse each line as JSON
		}
		return server.Serve(c.Context(), server.Options{Config: cfg, ConfigFile: *file, Version: c.ProgramVersion, Log: log, Out: out})
	})
}
