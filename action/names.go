package action

import (
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

// prefixes are the repositories in which the last path element is a native action.
var prefixes = []string{
	"tinkerbell/actions/", "tinkerbell-actions/", "eks-anywhere/tinkerbell/hub/", "eks-anywhere/tinkerbell/actions/",
	"embedded/",
}

// Repositories returns where an image reference may name a native action, without the registry's host.
func Repositories() []string { return append(slices.Clone(prefixes), waitDaemonRepository+WaitDaemon) }

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

// Native returns the native action of an image reference, and whether there is one. Registry host,
// tag and digest are ignored. A repository that only ends in a known name is not an alias.
func Native(image string) (string, bool) {
	path, _ := splitImage(image)
	name, ok := nameOf[path]
	return name, ok
}

// Rule returns the reason why Native finds an action for an image reference, or "" if it finds
// none.
func Rule(image string) string {
	path, repository := splitImage(image)
	name, ok := nameOf[path]
	if !ok {
		return ""
	}

	rule := "the name of the action"
	if path != name {
		rule = path + " is another name of " + name
	}
	if repository != "" {
		rule += "; " + repository + " is a repository of native actions"
	}
	return rule
}

// splitImage returns the name in an image reference, and the entry of prefixes before it. Without
// such a prefix, the name includes its folders.
func splitImage(image string) (name, repository string) {
	path, _, _ := strings.Cut(image, "@")
	slash := strings.LastIndexByte(path, '/')
	if colon := strings.LastIndexByte(path, ':'); colon > slash {
		path = path[:colon]
	}
	if host, rest, ok := strings.Cut(path, "/"); ok && (strings.ContainsAny(host, ".:") || host == "localhost") {
		path = rest
	}

	if strings.HasSuffix("/"+path, "/"+waitDaemonRepository+WaitDaemon) {
		return WaitDaemon, waitDaemonRepository
	}
	for _, p := range prefixes {
		// A mirror keeps the repository path and may add folders in front.
		if i := strings.Index("/"+path, "/"+p); i >= 0 {
			return path[i+len(p):], p
		}
	}
	return path, ""
}
