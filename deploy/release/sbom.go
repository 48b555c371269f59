package main

import (
	"bufio"
	"cmp"
	"context"
	"debug/buildinfo"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
)

// writeSBOM writes a software bill of materials (CycloneDX) to out. It lists the Go modules in the build information of the
// programs, and the Debian packages that the files in lists name: one .deb file per line.
func writeSBOM(version string, made time.Time, programs, lists []string, out string) error {
	bom, err := newSBOM(version, made, programs, lists)
	if err != nil {
		return err
	}
	return writeFile(out, func(w io.Writer) error {
		return cyclonedx.NewBOMEncoder(w, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	})
}

func newSBOM(version string, made time.Time, programs, lists []string) (*cyclonedx.BOM, error) {
	parts := map[string]cyclonedx.Component{} // by BOM reference
	needs := map[string][]string{}            // BOM reference → references of its dependencies
	for _, file := range programs {
		p := cyclonedx.Component{
			BOMRef: "program:" + filepath.Base(file), Type: cyclonedx.ComponentTypeApplication, Name: filepath.Base(file), Version: version,
		}
		modules, err := readModules(file)
		if err != nil {
			return nil, err
		}
		if p.Hashes, err = hashes(file); err != nil {
			return nil, err
		}
		parts[p.BOMRef] = p
		for _, m := range modules {
			parts[m.BOMRef] = m
			needs[p.BOMRef] = append(needs[p.BOMRef], m.BOMRef)
		}
	}

	top := cyclonedx.Component{BOMRef: "ingot", Type: cyclonedx.ComponentTypeApplication, Name: "ingot", Version: version}
	needs[top.BOMRef] = slices.Collect(maps.Keys(needs))
	for _, list := range lists {
		packages, err := readPackages(list)
		if err != nil {
			return nil, err
		}
		for _, p := range packages {
			parts[p.BOMRef] = p
			needs[top.BOMRef] = append(needs[top.BOMRef], p.BOMRef)
		}
	}

	bom := cyclonedx.NewBOM()
	bom.SpecVersion, bom.JSONSchema = cyclonedx.SpecVersion1_6, "http://cyclonedx.org/schema/bom-1.6.schema.json"
	bom.Metadata = &cyclonedx.Metadata{Timestamp: made.Format(time.RFC3339), Component: &top}
	components := slices.SortedFunc(maps.Values(parts), func(a, b cyclonedx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	bom.Components = &components
	var dependencies []cyclonedx.Dependency
	for _, ref := range slices.Sorted(maps.Keys(needs)) {
		refs := slices.Compact(slices.Sorted(slices.Values(needs[ref]))) // a package may occur in two lists
		dependencies = append(dependencies, cyclonedx.Dependency{Ref: ref, Dependencies: &refs})
	}
	bom.Dependencies = &dependencies
	return bom, nil
}

// readModules returns the modules in the build information of a program, and Go's standard library as "std".
func readModules(file string) (out []cyclonedx.Component, err error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the build information of %q: %w", file, err)
	}

	add := func(path, version string) {
		ref := "pkg:golang/" + path + "@" + url.PathEscape(version)
		out = append(out, cyclonedx.Component{
			BOMRef: ref, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: ref,
		})
	}
	add("std", strings.TrimPrefix(info.GoVersion, "go"))
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		add(m.Path, m.Version)
	}
	return out, nil
}

// hashes returns the SHA-256 of a file.
func hashes(file string) (*[]cyclonedx.Hash, error) {
	sum, err := durablefile.Digest(context.Background(), file)
	return &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: sum}}, err
}

// readPackages reads a list with one file name NAME_VERSION_ARCHITECTURE.deb per line. A colon in VERSION is written as %3a.
func readPackages(list string) (out []cyclonedx.Component, err error) {
	f, err := os.Open(list)
	if err != nil {
		return nil, fmt.Errorf("reading the list of Debian packages: %w", err)
	}
	defer f.Close() // ignore the error: the file was only read

	lines := bufio.NewScanner(f)
	for lines.Scan() {
		file, ok := strings.CutSuffix(lines.Text(), ".deb")
		part := strings.Split(file, "_")
		if !ok || len(part) != 3 {
			return nil, fmt.Errorf("list %q: invalid Debian package name %q", list, lines.Text())
		}
		version, err := url.PathUnescape(part[1])
		if err != nil {
			return nil, fmt.Errorf("list %q: %w", list, err)
		}
		ref := "pkg:deb/debian/" + part[0] + "@" + url.PathEscape(version) + "?arch=" + part[2]
		out = append(out, cyclonedx.Component{
			BOMRef: ref, Type: cyclonedx.ComponentTypeLibrary, Name: part[0], Version: version, PackageURL: ref,
		})
	}
	return out, lines.Err()
}
