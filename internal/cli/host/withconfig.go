package host

import (
	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/config"
)

// withConfig returns a run function for a command that reads this host's configuration first.
func withConfig(run func(c *cli.Call, cfg config.Config) error) func(*cli.Call) error {
	return func(c *cli.Call) error {
		cfg, err := c.LoadConfig()
		if err != nil {
			return err
		}
		return run(c, cfg)
	}
}
