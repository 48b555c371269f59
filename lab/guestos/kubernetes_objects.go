package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// node returns the only node of the cluster.
func (k *kubernetes) node() object {
	ready, reason := "True", "KubeletReady"
	if k.t.h.fails("node") || time.Since(k.since) < 2*time.Second {
		ready, reason = "False", "KubeletNotReady"
	}
	addrs := []object{{"type": "Hostname", "address": k.t.config.hostname}}
	for _, a := range addresses() {
		addrs = append(addrs, object{"type": "InternalIP", "address": strings.Split(a, "/")[0]})
	}
	return object{
		"apiVersion": "v1",
		"kind":       "Node",
		"metadata": object{
			"name":   k.t.config.hostname,
			"labels": object{"node-role.kubernetes.io/control-plane": "", "kubernetes.io/hostname": k.t.config.hostname},
		},
		"status": object{
			"conditions": []object{{"type": "Ready", "status": ready, "reason": reason}},
			"addresses":  addrs,
			"nodeInfo": object{
				"osImage":         "Talos (" + talosVersion + ")",
				"kubeletVersion":  "v1.36.0",
				"architecture":    "amd64",
				"operatingSystem": "linux",
			},
		},
	}
}

// replicas returns the replicas of a workload, 0 for other objects.
func replicas(o object) float64 {
	switch o["kind"] {
	case "DaemonSet":
		return 1
	case "Deployment", "StatefulSet":
		spec, _ := o["spec"].(object)
		if n, ok := spec["replicas"].(float64); ok {
			return n
		}
		return 1
	}
	return 0
}

// withStatus adds the status that a controller would write: workloads are ready once the lab reported that they run.
func (k *kubernetes) withStatus(o object) object {
	n := replicas(o)
	if n == 0 {
		return o
	}
	ready := 0.0
	if k.t.state.ReadyAll {
		ready = n
	}
	o = maps.Clone(o)
	if o["kind"] == "DaemonSet" {
		o["status"] = object{
			"desiredNumberScheduled": n,
			"currentNumberScheduled": n,
			"numberReady":            ready,
			"numberAvailable":        ready,
			"updatedNumberScheduled": n,
		}
		return o
	}
	available := "False"
	if ready > 0 {
		available = "True"
	}
	o["status"] = object{
		"replicas": n, "updatedReplicas": n, "readyReplicas": ready, "availableReplicas": ready,
		"conditions": []object{{"type": "Available", "status": available}},
	}
	return o
}

// pods returns one pod for each replica of the workloads.
func (k *kubernetes) pods() (all []object) {
	for _, path := range slices.Sorted(maps.Keys(k.t.state.Objects)) {
		o := k.t.state.Objects[path]
		spec, _ := o["spec"].(object)
		template, _ := spec["template"].(object)
		meta, _ := o["metadata"].(object)
		labels, _ := template["metadata"].(object)
		for i := range int(replicas(o)) {
			phase, ready := "Pending", "False"
			if k.t.state.ReadyAll {
				phase, ready = "Running", "True"
			}
			all = append(all, object{
				"apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
				"metadata": object{"name": fmt.Sprintf("%v-%d", meta["name"], i), "namespace": meta["namespace"], "labels": labels["labels"]},
				"status":   object{"phase": phase, "conditions": []object{{"type": "Ready", "status": ready}}},
			})
		}
	}
	return all
}
