package config

import (
	"fmt"
	"path/filepath"
	"regexp"
)

var (
	registryForm = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?$`)
	mirrorForm   = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?(/[a-z0-9._-]+)*$`)
	digestForm   = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// checkRegistries checks images.registries and images.privileged_containers.
func (i Images) checkRegistries(p *checker) {
	seen := map[string]bool{}
	for n, r := range i.Registries {
		field := fmt.Sprintf("images.registries[%d].", n)
		if !registryForm.MatchString(r.Host) || seen[r.Host] {
			p.Add(field+"host", "write each registry once, for example registry.example.com:5000", "invalid or repeated registry %q", r.Host)
		}
		seen[r.Host] = true
		if r.Mirror != "" && !mirrorForm.MatchString(r.Mirror) {
			p.Add(field+"mirror", "write HOST:PORT or HOST:PORT/PATH, without https://", "invalid mirror %q", r.Mirror)
		}
		if r.Mirror != "" && (r != Registry{Host: r.Host, Mirror: r.Mirror}) {
			p.Add(field+"mirror", "write the other keys into an entry whose host is the mirror", "%s is not contacted if it has a mirror", r.Host)
		}
		if (r.Username == "") != (r.PasswordFile == "") {
			p.Add(field+"password_file", "give username and password_file, or neither", "username and password_file must be given together")
		}
		if r.PlainHTTP && (r.Username != "" || r.CAFile != "") {
			p.Add(field+"plain_http", "leave it out", "without TLS, everyone on the way could read the password, and there is no certificate")
		}
		for key, file := range map[string]string{"password_file": r.PasswordFile, "ca_file": r.CAFile} {
			if file != "" && !filepath.IsAbs(file) {
				p.Add(field+key, "write an absolute path", "invalid path %q", file)
			}
		}
	}
	for n, d := range i.PrivilegedContainers {
		if !digestForm.MatchString(d) {
			p.Add(
				fmt.Sprintf("images.privileged_containers[%d]", n),
				"see: ingot image list",
				"invalid digest %q; must be sha256: and 64 hex digits",
				d,
			)
		}
	}
}
