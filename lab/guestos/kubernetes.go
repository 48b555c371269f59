package main

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
)

// object is a Kubernetes object as decoded JSON.
type object = map[string]any

// kubernetes is an API server that stores objects and runs nothing: health, nodes, discovery, and create, replace, server-side
// apply, read, list and delete of the usual kinds. The lab runs what was applied; see /applied and /ready of the health port.
type kubernetes struct {
	t     *talos
	since time.Time
	mux   sync.Mutex // one write at a time
}

func newKubernetes(t *talos) *kubernetes { return &kubernetes{t: t, since: time.Now()} }

// resource is a kind that the server stores.
type resource struct {
	kind, name string
	global     bool // not in a namespace
}

// resources by group and version, as they are written in paths.
var resources = map[string][]resource{
	"api/v1": {
		{"Namespace", "namespaces", true},
		{"Node", "nodes", true},
		{"PersistentVolume", "persistentvolumes", true},
		{"PersistentVolumeClaim", "persistentvolumeclaims", false},
		{"Pod", "pods", false},
		{"Secret", "secrets", false},
		{"ConfigMap", "configmaps", false},
		{"Service", "services", false},
		{"ServiceAccount", "serviceaccounts", false},
		{"Endpoints", "endpoints", false},
		{"Event", "events", false},
	},
	"apis/apps/v1":  {{"Deployment", "deployments", false}, {"StatefulSet", "statefulsets", false}, {"DaemonSet", "daemonsets", false}},
	"apis/batch/v1": {{"Job", "jobs", false}, {"CronJob", "cronjobs", false}},
	"apis/rbac.authorization.k8s.io/v1": {
		{"Role", "roles", false},
		{"RoleBinding", "rolebindings", false},
		{"ClusterRole", "clusterroles", true},
		{"ClusterRoleBinding", "clusterrolebindings", true},
	},
	"apis/policy/v1":            {{"PodDisruptionBudget", "poddisruptionbudgets", false}},
	"apis/networking.k8s.io/v1": {{"Ingress", "ingresses", false}, {"NetworkPolicy", "networkpolicies", false}},
	"apis/storage.k8s.io/v1":    {{"StorageClass", "storageclasses", true}},
	"apis/scheduling.k8s.io/v1": {{"PriorityClass", "priorityclasses", true}},
}

// target is a parsed path of the API.
type target struct {
	group     string // api/v1, apis/apps/v1
	resource  resource
	namespace string
	name      string
	status    bool
}

// path returns the path of the object itself.
func (g target) path() string { return g.collection() + "/" + g.name }

func (g target) collection() string {
	if g.namespace == "" {
		return "/" + g.group + "/" + g.resource.name
	}
	return "/" + g.group + "/namespaces/" + g.namespace + "/" + g.resource.name
}

// apiVersion returns the group and version as objects write them.
func (g target) apiVersion() string {
	if v, core := strings.CutPrefix(g.group, "api/"); core {
		return v
	}
	return strings.TrimPrefix(g.group, "apis/")
}

// parsePath reads /api/v1/… and /apis/GROUP/VERSION/….
func parsePath(path string) (g target, ok bool) {
	words := strings.Split(strings.Trim(path, "/"), "/")
	n := 2
	if words[0] == "apis" {
		n = 3
	}
	if len(words) <= n {
		return g, false
	}
	g.group, words = strings.Join(words[:n], "/"), words[n:]
	if words[0] == "namespaces" && len(words) > 2 {
		g.namespace, words = words[1], words[2:]
	}
	for _, r := range resources[g.group] {
		if r.name == words[0] && (g.namespace == "" || !r.global) {
			g.resource, ok = r, true
		}
	}
	if len(words) > 1 {
		g.name = words[1]
	}
	if len(words) > 2 {
		g.status = words[2] == "status"
		ok = ok && g.status && len(words) == 3
	}
	return g, ok && (g.name == "" || g.namespace != "" || g.resource.global)
}

// ServeHTTP implements http.Handler.
func (k *kubernetes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimRight(r.URL.Path, "/")
	switch path {
	case "/readyz", "/livez", "/healthz": // open to all, as by default
		if k.t.h.fails("readyz") || path == "/readyz" && time.Since(k.since) < time.Second {
			http.Error(w, "[-]poststarthook/start-apiextensions-controllers failed: not finished", http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, "ok") // an error means that the client has gone
		return
	case "/version":
		reply(w, http.StatusOK, object{"major": "1", "minor": "36", "gitVersion": "v1.36.0", "platform": "linux/amd64"})
		return
	}
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		refuse(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized")
		return
	}
	if discover(w, path) {
		return
	}
	g, ok := parsePath(path)
	if !ok {
		refuse(w, http.StatusNotFound, "NotFound", "the server could not find the requested resource")
		return
	}
	if r.Method != http.MethodGet && k.t.h.fails("apply") {
		refuse(w, http.StatusInternalServerError, "InternalError", "told to fail")
		return
	}
	switch r.Method {
	case http.MethodGet:
		k.get(w, g)
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		k.put(w, r, g)
	case http.MethodDelete:
		k.remove(w, g)
	default:
		refuse(w, http.StatusMethodNotAllowed, "MethodNotAllowed", "the server does not allow this method")
	}
}

func reply(w http.ResponseWriter, code int, o object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o) // an error means that the client has gone
}

// refuse answers with a metav1.Status.
func refuse(w http.ResponseWriter, code int, reason, message string) {
	reply(
		w,
		code,
		object{
			"kind":       "Status",
			"apiVersion": "v1",
			"metadata":   object{},
			"status":     "Failure",
			"message":    message,
			"reason":     reason,
			"code":       code,
		},
	)
}

// discover answers the discovery paths.
func discover(w http.ResponseWriter, path string) bool {
	switch path {
	case "/api":
		reply(w, http.StatusOK, object{"kind": "APIVersions", "versions": []string{"v1"}})
		return true
	case "/apis":
		var groups []object
		for _, g := range slices.Sorted(maps.Keys(resources)) {
			words := strings.Split(g, "/")
			if len(words) == 3 {
				version := object{"groupVersion": words[1] + "/" + words[2], "version": words[2]}
				groups = append(groups, object{"name": words[1], "versions": []object{version}, "preferredVersion": version})
			}
		}
		reply(w, http.StatusOK, object{"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
		return true
	}
	known, ok := resources[strings.TrimPrefix(path, "/")]
	if !ok {
		return false
	}
	var list []object
	for _, r := range known {
		list = append(list, object{
			"name": r.name, "singularName": strings.ToLower(r.kind), "kind": r.kind, "namespaced": !r.global,
			"verbs": []string{"create", "delete", "get", "list", "patch", "update"},
		})
	}
	reply(
		w,
		http.StatusOK,
		object{
			"kind":         "APIResourceList",
			"apiVersion":   "v1",
			"groupVersion": target{group: strings.TrimPrefix(path, "/")}.apiVersion(),
			"resources":    list,
		},
	)
	return true
}

// read returns an object; the caller holds t.mu.
func (k *kubernetes) read(g target) (object, bool) {
	if g.resource.kind == "Node" {
		n := k.node()
		return n, g.name == k.t.config.hostname
	}
	if g.resource.kind == "Namespace" && slices.Contains([]string{"default", "kube-system", "kube-public", "kube-node-lease"}, g.name) {
		return object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": g.name}, "status": object{"phase": "Active"}}, true
	}
	if g.resource.kind == "Pod" {
		for _, p := range k.pods() {
			m, _ := p["metadata"].(object)
			if m["name"] == g.name && m["namespace"] == g.namespace {
				return p, true
			}
		}
	}
	o, ok := k.t.state.Objects[g.path()]
	if ok {
		o = k.withStatus(o)
	}
	return o, ok
}

func (k *kubernetes) get(w http.ResponseWriter, g target) {
	k.t.mu.Lock()
	defer k.t.mu.Unlock()
	if g.name != "" {
		o, ok := k.read(g)
		if !ok {
			refuse(w, http.StatusNotFound, "NotFound", fmt.Sprintf("%s %q not found", g.resource.name, g.name))
			return
		}
		reply(w, http.StatusOK, o)
		return
	}
	items := []object{}
	switch g.resource.kind {
	case "Node":
		items = append(items, k.node())
	case "Pod":
		for _, p := range k.pods() {
			if m, _ := p["metadata"].(object); g.namespace == "" || m["namespace"] == g.namespace {
				items = append(items, p)
			}
		}
	default:
		for _, path := range slices.Sorted(maps.Keys(k.t.state.Objects)) {
			if o, ok := parsePath(
				path,
			); ok && o.group == g.group && o.resource == g.resource &&
				(g.namespace == "" || o.namespace == g.namespace) {
				items = append(items, k.withStatus(k.t.state.Objects[path]))
			}
		}
	}
	reply(w, http.StatusOK,
		object{"kind": g.resource.kind + "List", "apiVersion": g.apiVersion(), "metadata": object{"resourceVersion": "1"}, "items": items})
}

// put creates, replaces or applies.
func (k *kubernetes) put(w http.ResponseWriter, r *http.Request, g target) {
	body, err := io.ReadAll(io.LimitReader(r.Body, mib))
	if err != nil {
		return
	}
	kind := strings.TrimSpace(strings.Split(r.Header.Get("Content-Type"), ";")[0])
	apply := r.Method == http.MethodPatch
	switch {
	case apply && kind != "application/apply-patch+yaml":
		refuse(w, http.StatusUnsupportedMediaType, "UnsupportedMediaType", "only server-side apply patches are known here")
		return
	case apply && r.URL.Query().Get("fieldManager") == "":
		refuse(w, http.StatusBadRequest, "BadRequest",
			"PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch")
		return
	case (r.Method == http.MethodPost) != (g.name == ""):
		refuse(w, http.StatusMethodNotAllowed, "MethodNotAllowed", "the server does not allow this method")
		return
	}
	o := object{}
	if err := yaml.Unmarshal(body, &o); err != nil { // JSON is YAML
		refuse(w, http.StatusBadRequest, "BadRequest", "error decoding: "+err.Error())
		return
	}
	if b, err := json.Marshal(o); err != nil || json.Unmarshal(b, &o) != nil { // the types of JSON
		refuse(w, http.StatusBadRequest, "BadRequest", fmt.Sprintf("error decoding: %v", err))
		return
	}
	meta, _ := o["metadata"].(object)
	name, _ := meta["name"].(string)
	if g.name == "" {
		g.name = name
	}
	switch {
	case o["kind"] != g.resource.kind || o["apiVersion"] != g.apiVersion():
		refuse(w, http.StatusBadRequest, "BadRequest",
			fmt.Sprintf("the object is a %v %v, the path is of %s %s", o["apiVersion"], o["kind"], g.apiVersion(), g.resource.kind))
		return
	case name == "" || name != g.name:
		refuse(w, http.StatusBadRequest, "BadRequest", "the name of the object does not match the name on the URL")
		return
	case g.namespace == "" && !g.resource.global:
		refuse(w, http.StatusBadRequest, "BadRequest", "a namespace is required")
		return
	case g.namespace != "" && meta["namespace"] != nil && meta["namespace"] != g.namespace:
		refuse(w, http.StatusBadRequest, "BadRequest", "the namespace of the object does not match the namespace on the URL")
		return
	}
	if g.namespace != "" {
		meta["namespace"] = g.namespace
	}
	k.mux.Lock()
	defer k.mux.Unlock()
	k.t.mu.Lock()
	if g.namespace != "" {
		if _, ok := k.read(target{group: "api/v1", resource: resource{"Namespace", "namespaces", true}, name: g.namespace}); !ok {
			k.t.mu.Unlock()
			refuse(w, http.StatusNotFound, "NotFound", fmt.Sprintf("namespaces %q not found", g.namespace))
			return
		}
	}
	old, exists := k.read(g)
	k.t.mu.Unlock()
	if exists && r.Method == http.MethodPost {
		refuse(w, http.StatusConflict, "AlreadyExists", fmt.Sprintf("%s %q already exists", g.resource.name, g.name))
		return
	}
	if !exists && r.Method == http.MethodPut {
		refuse(w, http.StatusNotFound, "NotFound", fmt.Sprintf("%s %q not found", g.resource.name, g.name))
		return
	}
	before, _ := old["metadata"].(object)
	for _, kept := range []string{"uid", "creationTimestamp"} {
		meta[kept] = before[kept]
	}
	if meta["uid"] == nil {
		id := make([]byte, 16)
		_, _ = rand.Read(id) // never fails
		x := hex.EncodeToString(id)
		meta["uid"] = x[:8] + "-" + x[8:12] + "-" + x[12:16] + "-" + x[16:20] + "-" + x[20:]
		meta["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	}
	delete(o, "status")
	err = k.t.update(func(s *talosState) error {
		if s.Objects == nil {
			s.Objects = map[string]object{}
		}
		if !exists {
			s.Applied = append(s.Applied, g.path())
		}
		meta["resourceVersion"] = fmt.Sprint(len(s.Applied))
		s.Objects[g.path()] = o
		return nil
	})
	if err != nil {
		refuse(w, http.StatusInternalServerError, "InternalError", err.Error())
		return
	}
	k.t.h.say("applied %s", g.path())
	code := http.StatusOK
	if !exists {
		code = http.StatusCreated
	}
	reply(w, code, k.withStatus(o))
}

func (k *kubernetes) remove(w http.ResponseWriter, g target) {
	k.mux.Lock()
	defer k.mux.Unlock()
	found := false
	err := k.t.update(func(s *talosState) error {
		gone := func(path string) bool { return path == g.path() }
		_, found = s.Objects[g.path()]
		if g.resource.kind == "Namespace" { // with all that is in it
			gone = func(path string) bool { return path == g.path() || strings.Contains(path, "/namespaces/"+g.name+"/") }
		}
		for path := range s.Objects {
			if gone(path) {
				delete(s.Objects, path)
			}
		}
		s.Applied = slices.DeleteFunc(s.Applied, gone)
		return nil
	})
	switch {
	case err != nil:
		refuse(w, http.StatusInternalServerError, "InternalError", err.Error())
	case !found:
		refuse(w, http.StatusNotFound, "NotFound", fmt.Sprintf("%s %q not found", g.resource.name, g.name))
	default:
		k.t.h.say("deleted %s", g.path())
		reply(w, http.StatusOK, object{"kind": "Status", "apiVersion": "v1", "metadata": object{}, "status": "Success"})
	}
}

// serveHealth adds to the health port what the lab needs to run the applied workloads:
//
//	GET  /applied          the objects, in the order in which they came, and how often Bootstrap was asked for
//	POST /ready?ready=1    the applied workloads run (0: they do not)
func (t *talos) serveHealth() {
	t.h.mux.HandleFunc("GET /applied", func(w http.ResponseWriter, _ *http.Request) {
		t.mu.Lock()
		objects := []object{}
		for _, path := range t.state.Applied {
			objects = append(objects, t.state.Objects[path])
		}
		b, err := json.Marshal(
			object{"objects": objects, "bootstrapped": t.state.Bootstrapped, "bootstraps": t.state.Bootstraps, "boots": t.state.Boots},
		)
		t.mu.Unlock()
		answer(w, b, err)
	})
	t.h.mux.HandleFunc("POST /ready", func(w http.ResponseWriter, r *http.Request) {
		err := t.update(func(s *talosState) error { s.ReadyAll = r.FormValue("ready") != "0"; return nil })
		answer(w, []byte("{}"), err)
	})
}
