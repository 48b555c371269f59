// Command mkimage builds the disk image of the lab that "make demo" installs, if the cache does not have it. It is a program
// of its own, because it is compiled, and can build the image, long before the rest of Ingot is compiled.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/ingotmetal/ingot/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	image, err := lab.DebianImage(ctx, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
	fmt.Println(image.Zst)
}
