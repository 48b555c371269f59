// Command image makes a container image from the output of "make build", without
// a network and without a container engine. The image holds the server, ipmitool,
// the libraries that both load, CA certificates, boot loaders and the agent's
// system. The same files give the same bytes.
//
//	go run ./deploy/image -bin bin -out bin/ingot.oci.tar # an OCI layout that "docker load" reads as well
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	s := source{Root: "/"}
	out := flag.String("out", "bin/ingot.oci.tar", "file to write")
	flag.StringVar(&s.Bin, "bin", "bin", "directory with the programs and boot files of make build")
	flag.StringVar(&s.Version, "version", "unknown", "version for the image's label")
	flag.StringVar(&s.Name, "name", "ingot:latest", "name under which a container engine loads the image")
	flag.Parse()
	if err := run(s, *out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(s source, out string, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected arguments %q", args)
	}
	// Build in a temporary directory, so that the output file appears only when the image is complete.
	tmp, err := os.MkdirTemp(filepath.Dir(out), ".image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp) // ignore the error: the files are temporary
	built, err := build(s, tmp)
	if err != nil {
		return err
	}
	if err := os.Rename(built.File, out); err != nil {
		return err
	}

	fmt.Printf("%s: %s, %s, %d MiB, digest %s\n", out, s.Name, built.Platform, built.Size>>20, built.Digest)
	return nil
}
