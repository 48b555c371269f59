// Command demo is the last stage of "make demo": it installs two machines of the virtual lab and prints what happens.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/ingotmetal/ingot/e2e"
	"github.com/ingotmetal/ingot/lab"
)

func main() {
	keep := flag.Bool("keep", false, "leave machines and page running until interrupted")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := demo(ctx, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context, keep bool) (err error) {
	if err := lab.Requirements(); err != nil {
		return err
	}

	image, err := lab.DebianImage(ctx, os.Stdout) // built already by "make demo": this only opens it
	if err != nil {
		return err
	}

	fmt.Println("two machines are installed now: usually 1 to 2 min")
	s, err := e2e.NewSite(ctx, e2e.Options{Root: "."})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()

	link, err := s.CLI(ctx, "login-link")
	if err != nil {
		return err
	}
	link = strings.Replace(strings.TrimSpace(link), "127.0.0.1:8080", s.API, 1)
	fmt.Printf("page      %s\nTemporal  http://%s  (temporal --address %s workflow list)\n\n", link, s.UI, s.Temporal)

	limit, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	machines, err := e2e.Demo(limit, s, image, os.Stdout)
	if err != nil {
		return err
	}
	fmt.Println()
	for _, m := range machines {
		fmt.Printf("%-5s installed in %s: %s\n", m.Name, m.Took.Round(time.Second), m.What)
	}
	fmt.Println("log in on a machine's serial console as root, password lab (make demo KEEP=1 keeps them running)")

	if keep {
		for _, m := range machines {
			fmt.Printf("%-5s console: %s\n", m.Name, m.SerialPath())
		}
		fmt.Println("press Ctrl-C to stop the lab")
		<-ctx.Done()
	}
	return nil
}
