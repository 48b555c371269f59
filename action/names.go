package action

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Natives lists the names of the native actions, sorted.
func Natives() []string { return slices.Sorted(maps.Keys(natives)) }

// Names returns the names and aliases of the native actions, sorted. In a template, these names are valid without a repository.
func Names() []string {
	names := Natives()
	for _, n := range natives {
		names = append(names, n.Aliases...)
	}
	slices.Sort(names)
	return names
}

// repositories lists where native actions are published. path precedes the name of the action. hosts are the registries in
// which this path belongs to the publisher; in any other public registry, anyone may own the path.
var repositories = []struct {
	path  string
	hosts []string
}{
	{waitDaemonRepository, []string{"ghcr.io"}},
	{"eks-anywhere/tinkerbell/hub/", []string{"public.ecr.aws"}},
	{"eks-anywhere/tinkerbell/actions/", []string{"public.ecr.aws"}}, // ends with "tinkerbell/actions/", so it must come before that path
	{"tinkerbell/actions/", []string{"quay.io", "ghcr.io"}},
	{"tinkerbell-actions/", []string{"quay.io"}},
	{"embedded/", []string{"127.0.0.1"}}, // HookOS's own registry
}

// publicRegistries are registries where anyone can publish. Subdomains of them are public, too.
var publicRegistries = []string{
	"cgr.dev", "codeberg.org", "containers.pkg.github.com", "docker.io", "docker.pkg.github.com", "gcr.io", "ghcr.io",
	"mcr.microsoft.com", "nvcr.io", "pkg.dev", "public.ecr.aws", "quay.io", "registry.access.redhat.com", "registry.gitlab.com",
	"registry.hub.docker.com", "registry.k8s.io", "registry.redhat.io", "ttl.sh",
}

// PublicRegistries returns the public registries. In these, only the publisher's repositories contain native actions. The
// subdomains of a public registry are public, too. Every other registry counts as a mirror of the publisher's.
func PublicRegistries() []string { return slices.Clone(publicRegistries) }

// Repositories returns the prefixes of image references that may name a native action. A prefix is HOST/PATH if the path belongs to
// the publisher only in certain public registries, otherwise PATH.
func Repositories() (out []string) {
	for _, r := range repositories {
		path := r.path
		if path == waitDaemonRepository {
			path += WaitDaemon
		}
		if len(r.hosts) == 0 {
			out = append(out, path)
		}
		for _, host := range r.hosts {
			out = append(out, host+"/"+path)
		}
	}
	return out
}

// nameOf maps names and aliases to names. Native uses it instead of iterating over the map natives, because workflows call Native,
// and workflow code must be deterministic.
var nameOf = indexNames()

func indexNames() map[string]string {
	index := map[string]string{}
	for name, n := range natives {
		index[name] = name
		for _, alias := range n.Aliases {
			index[alias] = name
		}
	}
	return index
}

// Native returns the name of the native action that an image reference means, or false if it means none. Native ignores the tag,
// the digest, and the host of a registry that is not public, because such a registry counts as a mirror. An image whose last path
// element is the name of an action means this action only if the rest of its path is in repositories.
func Native(image string) (string, bool) {
	r := parseImage(image)
	name, ok := nameOf[r.name]
	if !ok || !r.published() {
		return "", false
	}
	return name, true
}

// Foreign returns why an image with the name of a native action is not this action: the image is in a public registry, under a path
// that does not belong to the publisher. For all other images, Foreign returns "".
func Foreign(image string) string {
	r := parseImage(image)
	name, ok := nameOf[r.name]
	if !ok || r.published() {
		return ""
	}
	return r.foreign(name)
}

// foreign returns why r is not the native action called name. published must have returned false for r.
func (r imageReference) foreign(name string) string {
	if r.host == "" {
		return fmt.Sprintf(
			"the image is not the agent's %s: without a registry's host, it comes from the public registry docker.io, "+
				"where %s does not belong to the action's publisher",
			name,
			r.before+r.repository,
		)
	}
	return fmt.Sprintf("the image is not the agent's %s: in the public registry %s, %s does not belong to the action's publisher",
		name, r.host, cmp.Or(r.before+r.repository, r.name))
}

// Mirror returns the host of the image's registry if the image is a native action and the registry counts as a mirror of the
// publisher's; otherwise "".
func Mirror(image string) string {
	r := parseImage(image)
	if _, ok := nameOf[r.name]; !ok || r.host == "" || publicRegistry(r.host) != "" {
		return ""
	}
	for _, known := range repositories {
		if known.path == r.repository && r.before == "" && slices.Contains(known.hosts, r.host) {
			return ""
		}
	}
	return r.host
}

// Rule returns why Native finds a native action for the image reference, or "" if it finds none.
func Rule(image string) string {
	name, ok := Native(image)
	if !ok {
		return ""
	}

	r := parseImage(image)
	rule := "the name of the action"
	if r.name != name {
		rule = r.name + " is another name of " + name
	}
	if r.repository != "" {
		rule += "; " + r.repository + " is a repository of native actions"
	}
	if host := Mirror(image); host != "" {
		rule += "; " + host + " counts as a mirror of the publisher's registry"
	}
	return rule
}

// An imageReference is an image reference, divided into the parts that decide whether it means a native action.
type imageReference struct {
	host       string // host of the registry, in lower case and without the port; "" = there is no host in the reference
	before     string // folders of the path in front of repository
	repository string // one of the paths in repositories; "" = the reference contains none of them
	name       string // name of the action; the whole path if repository is ""
}

// published reports whether the reference means the publisher's image, in the publisher's registry or in a mirror.
func (r imageReference) published() bool {
	public := publicRegistry(r.host)
	switch {
	case r.host == "": // folders in front of the repository would make it an image of another user of Docker Hub
		return r.before == ""
	case public == "":
		return true
	}
	for _, known := range repositories {
		if known.path == r.repository {
			return r.before == "" && slices.Contains(known.hosts, public)
		}
	}
	return false // there is no repository in front of the name
}

// publicRegistry returns the entry of publicRegistries that is host or a parent domain of host; "" if there is none.
func publicRegistry(host string) string {
	for _, public := range publicRegistries {
		if host == public || strings.HasSuffix(host, "."+public) {
			return public
		}
	}
	return ""
}

// parseImage reads an image reference, which is [HOST[:PORT]/]PATH[:TAG][@DIGEST].
func parseImage(image string) (r imageReference) {
	path, _, _ := strings.Cut(image, "@")
	if strings.Contains(path, "//") {
		return imageReference{name: image} // a URL
	}
	slash := strings.LastIndexByte(path, '/')
	if colon := strings.LastIndexByte(path, ':'); colon > slash {
		path = path[:colon]
	}
	if host, rest, ok := strings.Cut(path, "/"); ok && (strings.ContainsAny(host, ".:") || host == "localhost") {
		path = rest
		if colon := strings.LastIndexByte(host, ':'); colon >= 0 {
			host = host[:colon]
		}
		r.host = strings.ToLower(strings.TrimSuffix(host, "."))
	}

	r.name = path
	for _, known := range repositories {
		// A mirror keeps the publisher's path and may add folders in front of it.
		i := strings.Index("/"+path, "/"+known.path)
		if i < 0 || known.path == waitDaemonRepository && path[i+len(known.path):] != WaitDaemon {
			continue
		}
		r.before, r.repository, r.name = path[:i], known.path, path[i+len(known.path):]
		break
	}
	return r
}
