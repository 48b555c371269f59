// Command release makes the files of a release other than the programs: manual pages, shell completions, the software bill
// of materials, and the signature of the checksums. The same inputs give the same bytes.
//
//	go run ./deploy/release manual -version V -seconds S DIR
//	go run ./deploy/release sbom -version V -seconds S [-packages LIST]... -out FILE PROGRAM...
//	go run ./deploy/release sign -key FILE -version V FILE        # writes FILE.minisig
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: release manual | sbom | sign [flags] ARGUMENTS")
	}

	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	version := flags.String("version", "unknown", "version of the release")
	seconds := flags.Int64("seconds", 0, "time of the release, in seconds since 1970")
	out := flags.String("out", "", "with sbom: file to write")
	key := flags.String("key", "", "with sign: minisign key; the key's password, if any, is read from INGOT_SIGN_PASSWORD")
	var packages []string
	flags.Func("packages", "with sbom: file with a list of Debian packages; may be repeated", func(name string) error {
		packages = append(packages, name)
		return nil
	})
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	made := time.Unix(*seconds, 0).UTC()

	switch {
	case args[0] == "manual" && flags.NArg() == 1:
		return writeManual(*version, made, flags.Arg(0))
	case args[0] == "sbom" && flags.NArg() > 0 && *out != "":
		return writeSBOM(*version, made, flags.Args(), packages, *out)
	case args[0] == "sign" && flags.NArg() == 1 && *key != "":
		return sign(*version, *key, os.Getenv("INGOT_SIGN_PASSWORD"), flags.Arg(0))
	}
	return fmt.Errorf("invalid arguments %q; see the comment at the top of deploy/release/main.go", args)
}
