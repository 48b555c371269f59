package cli

import (
	"errors"
	"io"
	"net/http"

	"github.com/spf13/cobra"
)

// tokenExample makes the file before the token is in it: otherwise every local user may read it.
const tokenExample = "  install -m 600 -o prometheus -g prometheus /dev/null /etc/prometheus/ingot.token\n" +
	"  ingot metrics token > /etc/prometheus/ingot.token"

func metricsCommand(o *Options) *cobra.Command {
	return Group("metrics", "Metrics for Prometheus",
		"  ingot metrics show\n"+tokenExample,
		metricsShowCommand(o), metricsTokenCommand(o))
}

func metricsShowCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "show", Short: "Print the metrics as Prometheus reads them", Args: cobra.NoArgs,
		Example: "  ingot metrics show | promtool check metrics",
	}, func(c *Call) error {
		resp, err := c.Request(http.MethodGet, "/metrics", nil, 0)
		if err != nil {
			return err
		}
		_, err = io.Copy(c.OutOrStdout(), resp.Body)
		return errors.Join(err, resp.Body.Close())
	})
}

func metricsTokenCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "token", Short: "Print the token that opens /metrics alone", Args: cobra.NoArgs,
		Long: `Print the token with which Prometheus may read /metrics. It opens nothing else. It
is derived from the admin token, and changes with it.`,
		Example: tokenExample,
	}, func(c *Call) error {
		s, err := c.Server()
		if err != nil {
			return err
		}
		token := s.MetricsToken()
		return ShowText(c, map[string]string{"token": token}, token)
	})
}
