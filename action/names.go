package action

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Natives lists the actions, sorted.
func Natives() []string { return slices.Sorted(maps.Keys(natives)) }

// Names returns the actions and their aliases, sorted. A template may use these names without a
// repository.
func Names() []string {
	names := Natives()
	for _, n := range natives {
		names = append(names, n.Aliases...)
	}
	slices.Sort(names)
	return names
}

// repositories are where native actions are published: the path in front of their names, and the public registries where
// that path is the publisher's. Elsewhere in public, anyone may have a repository of that path.
var repositories = []struct {
	path  string
	hosts []string
}{
	{waitDaemonRepository, []string{"ghcr.io"}},
	{"eks-anywhere/tinkerbell/hub/", []string{"public.ecr.aws"}},
	{"eks-anywhere/tinkerbell/actions/", []string{"public.ecr.aws"}}, // before the row that its path ends with
	{"tinkerbell/actions/", []string{"quay.io", "ghcr.io"}},
	{"tinkerbell-actions/", []string{"quay.io"}},
	{"embedded/", nil}, // of HookOS's own registry, at 127.0.0.1
}

// publicRegistries are registries where anyone can publish. Each includes the hosts below it.
var publicRegistries = []string{
	"cgr.dev", "codeberg.org", "containers.pkg.github.com", "docker.io", "docker.pkg.github.com", "gcr.io", "ghcr.io",
	"mcr.microsoft.com", "nvcr.io", "pkg.dev", "public.ecr.aws", "quay.io", "registry.access.redhat.com", "registry.gitlab.com",
	"registry.hub.docker.com", "registry.k8s.io", "registry.redhat.io", "ttl.sh",
}

// PublicRegistries returns the registries where only publishers' repositories hold native actions. A host below one of them
// counts as it does. All other registries are mirrors.
func PublicRegistries() []string { return slices.Clone(publicRegistries) }

// Repositories returns where an image reference may name a native action: paths, and the public registries where a path is
// the publisher's.
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

// nameOf maps names and aliases to names. Workflows call Native, which must be deterministic: it
// must not iterate over the map natives.
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

// Native returns the native action of an image reference, and whether there is one. Tag and digest are ignored, and so is the
// host of a registry that is not public: it is a mirror. A repository that only ends in a known name is not an alias.
func Native(image string) (string, bool) {
	r := parseImage(image)
	name, ok := nameOf[r.name]
	if !ok || !r.published() {
		return "", false
	}
	return name, true
}

// Foreign returns why an image that has the name of a native action is not that action: it is in a public registry, under
// a path that is not the publisher's. For all other images, it returns "".
func Foreign(image string) string {
	r := parseImage(image)
	name, ok := nameOf[r.name]
	if !ok || r.published() {
		return ""
	}
	return r.foreign(name)
}

// foreign returns the reason why a reference that is not published is not the native action name.
func (r imageReference) foreign(name string) string {
	if r.host == "" {
		return fmt.Sprintf(
			"it is not the agent's %s: without a registry's host it is an image of docker.io, a public registry, where %s is not the publisher's",
			name,
			r.before+r.repository,
		)
	}
	return fmt.Sprintf("it is not the agent's %s: in the public registry %s, %s is not the publisher's", name, r.host,
		cmp.Or(r.before+r.repository, r.name))
}

// Mirror returns the registry's host in the reference of a native action if that registry counts as a mirror of the
// publisher's; otherwise "".
func Mirror(image string) string {
	r := parseImage(image)
	if _, ok := nameOf[r.name]; !ok || r.host == "" || publicRegistry(r.host) != "" {
		return ""
	}
	return r.host
}

// Rule returns the reason why Native finds an action for an image reference, or "" if it finds
// none.
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
		rule += "; " + host + " counts as a mirror of it"
	}
	return rule
}

// An imageReference is what an image reference has of a native action.
type imageReference struct {
	host       string // of the registry, in lower case and without its port; "" = none is given
	before     string // folders before repository
	repository string // an entry of repositories; "" = there is only the name
	name       string // with its folders where there is no repository
}

// published reports whether the reference is to the publisher's image or to a mirror's.
func (r imageReference) published() bool {
	public := publicRegistry(r.host)
	switch {
	case r.host == "": // with folders in front, it is another user's image of Docker Hub
		return r.before == ""
	case public == "":
		return true
	}
	for _, known := range repositories {
		if known.path == r.repository {
			return r.before == "" && slices.Contains(known.hosts, public)
		}
	}
	return false // a name alone, which no publisher has
}

// publicRegistry returns the entry of publicRegistries that a host belongs to, or "".
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
		// A mirror keeps the repository path and may add folders in front.
		i := strings.Index("/"+path, "/"+known.path)
		if i < 0 || known.path == waitDaemonRepository && path[i+len(known.path):] != WaitDaemon {
			continue
		}
		r.before, r.repository, r.name = path[:i], known.path, path[i+len(known.path):]
		break
	}
	return r
}
