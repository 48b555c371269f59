package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// create takes the VIP and makes this node the first of the cluster.
func (n *harvester) create(ctx context.Context, card string) {
	h := n.h
	h.stage("running", "creating the cluster")
	own := n.address()
	if err := n.update(func(s *harvesterState) {
		s.Nodes[n.config.OS.Hostname] = harvesterNode{Name: n.config.OS.Hostname, Address: own, Role: n.config.Install.Role, Created: true}
	}); err != nil {
		h.say("keeping the state: %v", err)
	}
	if h.fails("vip") {
		h.say("no VIP: told to fail")
		return
	}
	if n.config.Install.VIPMode == "dhcp" {
		h.say("a VIP by DHCP is not known here")
		return
	}
	if err := addAddress(card, n.config.Install.VIP+"/32"); err != nil {
		h.say("taking the VIP: %v", err)
		return
	}
	h.say("VIP %s on %s", n.config.Install.VIP, card)
	for h.fails("ready") {
		if !pause(ctx, time.Second) {
			return
		}
	}
	n.mu.Lock()
	n.up = true
	n.mu.Unlock()
	h.stage("running", "the cluster answers")
}

// join registers at server_url, and again every 5 s.
func (n *harvester) join(ctx context.Context) {
	h := n.h
	h.stage("running", "joining "+n.config.ServerURL)
	last := ""
	for ; ; pause(ctx, 5*time.Second) {
		if ctx.Err() != nil {
			return
		}
		err := errors.New("told to fail")
		if !h.fails("join") {
			err = n.register(ctx)
		}
		n.mu.Lock()
		n.joined = err == nil
		n.mu.Unlock()
		now := "joined"
		if err != nil {
			now = "joining: " + err.Error()
		}
		if now != last {
			h.stage("running", now)
			last = now
		}
	}
}

func (n *harvester) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	b, err := json.Marshal(
		harvesterNode{Name: n.config.OS.Hostname, Address: n.address(), Role: n.config.Install.Role, Down: n.h.fails("node")},
	)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost,
		strings.TrimRight(n.config.ServerURL, "/")+"/v3/connect/join", bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+n.config.Token)
	res, err := client().Do(req)
	if err != nil {
		return plain(err)
	}
	defer res.Body.Close() // only read from
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the cluster answers %s", res.Status)
	}
	return nil
}

// serve answers on port 443 of all addresses: the node's page and, on the node that created the cluster, the cluster's API.
func (n *harvester) serve(ctx context.Context, stopped chan<- error) error {
	var mux http.ServeMux
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { n.page(w, "<!doctype html><title>Harvester</title>\n") })
	mux.HandleFunc("GET /ping", func(w http.ResponseWriter, _ *http.Request) { n.page(w, "pong") })
	if n.config.Install.Mode == "create" {
		for path, f := range map[string]func() object{
			"GET /v1/harvester/cluster/local": n.cluster,
			"GET /v1/harvester/nodes":         n.nodes,
			"GET /v1/nodes":                   n.nodes,
		} {
			mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
				token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
				n.mu.Lock()
				known := n.tokens[token]
				n.mu.Unlock()
				switch {
				case !n.isUp():
					refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", "the cluster is not ready")
				case strings.HasSuffix(path, "/nodes") && !known:
					refuse(w, http.StatusUnauthorized, "Unauthorized", "must authenticate")
				default:
					reply(w, http.StatusOK, f())
				}
			})
		}
		mux.HandleFunc("POST /v3-public/localProviders/local", n.login)
		mux.HandleFunc("POST /v3/tokens", n.logout)
		n.h.mux.HandleFunc("GET /nodes", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, n.nodes()) })
		mux.HandleFunc("POST /v3/connect/join", n.joining)
	}
	cert, keep, err := selfSigned(n.config.OS.Hostname, n.state.Certificate)
	if err != nil {
		return err
	}
	if err := n.update(func(s *harvesterState) { s.Certificate = keep }); err != nil {
		return err
	}
	_, err = serveTLS(ctx, cert, ":443", &mux, stopped)
	return err
}

func (n *harvester) isUp() bool {
	down := n.h.fails("ready")
	n.mu.Lock()
	defer n.mu.Unlock()
	return (n.up || n.joined) && !down
}

func (n *harvester) page(w http.ResponseWriter, text string) {
	if !n.isUp() {
		http.Error(w, "no available server", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, text) // an error means that the client has gone
}

// login starts a session of the administrator. The first login sets the password, as on the page of a new cluster.
func (n *harvester) login(w http.ResponseWriter, r *http.Request) {
	var in struct{ Username, Password string }
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&in); err != nil || r.FormValue("action") != "login" {
		refuse(w, http.StatusBadRequest, "BadRequest", "no log-in")
		return
	}
	if !n.isUp() {
		refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", "the cluster is not ready")
		return
	}
	n.mu.Lock()
	have, sum := n.state.Password, sha256.Sum256([]byte(in.Password))
	n.mu.Unlock()
	fresh := have == [32]byte{}
	if in.Username != "admin" || in.Password == "" || !fresh && have != sum {
		refuse(w, http.StatusUnauthorized, "Unauthorized", "authentication failed")
		return
	}
	if fresh {
		if err := n.update(func(s *harvesterState) { s.Password = sum }); err != nil {
			refuse(w, http.StatusInternalServerError, "InternalError", err.Error())
			return
		}
	}
	token := "token-lab:" + rand.Text()
	n.mu.Lock()
	n.tokens[token] = true
	n.mu.Unlock()
	reply(w, http.StatusCreated, object{"type": "token", "token": token})
}

// logout ends a session.
func (n *harvester) logout(w http.ResponseWriter, r *http.Request) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	n.mu.Lock()
	known := n.tokens[token]
	delete(n.tokens, token)
	n.mu.Unlock()
	switch {
	case !known:
		refuse(w, http.StatusUnauthorized, "Unauthorized", "must authenticate")
	case r.URL.Query().Get("action") != "logout":
		refuse(w, http.StatusBadRequest, "BadRequest", "no log-out")
	default:
		reply(w, http.StatusOK, object{})
	}
}

// joining admits a node that has the cluster's token.
func (n *harvester) joining(w http.ResponseWriter, r *http.Request) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if subtle.ConstantTimeCompare([]byte(token), []byte(n.config.Token)) != 1 {
		n.h.say("a node was refused: wrong token")
		refuse(w, http.StatusUnauthorized, "Unauthorized", "the token is wrong")
		return
	}
	var node harvesterNode
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).
		Decode(&node); err != nil || node.Name == "" ||
		node.Name == n.config.OS.Hostname {
		refuse(w, http.StatusBadRequest, "BadRequest", "a node needs a name of its own")
		return
	}
	if !n.isUp() {
		refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", "the cluster is not ready")
		return
	}
	node.Created = false
	n.mu.Lock()
	n.seen[node.Name] = time.Now()
	old, known := n.state.Nodes[node.Name]
	n.mu.Unlock()
	if !known || old != node {
		if err := n.update(func(s *harvesterState) { s.Nodes[node.Name] = node }); err != nil {
			refuse(w, http.StatusInternalServerError, "InternalError", err.Error())
			return
		}
		n.h.say("node %s joined from %s", node.Name, node.Address)
	}
	reply(w, http.StatusOK, object{"type": "joined"})
}

// ready reports whether node called within 40 s, after which Kubernetes counts a node as lost.
func (n *harvester) ready(node harvesterNode) bool {
	return node.Created || !node.Down && time.Since(n.seen[node.Name]) < 40*time.Second
}

// cluster answers GET /v1/harvester/cluster/local.
func (n *harvester) cluster() object {
	n.mu.Lock()
	defer n.mu.Unlock()
	return object{
		"id":   "local",
		"type": "management.cattle.io.cluster",
		"metadata": object{
			"name":  "local",
			"state": object{"name": "active", "error": false, "transitioning": false, "message": "Resource is Ready"},
		},
		"status": object{"nodeCount": len(n.state.Nodes), "conditions": []object{{"type": "Ready", "status": "True"}}},
	}
}

// nodes answers GET /v1/harvester/nodes in the forms of Rancher (data) and Kubernetes (items).
func (n *harvester) nodes() object {
	n.mu.Lock()
	defer n.mu.Unlock()
	data := []object{}
	for _, name := range slices.Sorted(maps.Keys(n.state.Nodes)) {
		node := n.state.Nodes[name]
		state, condition := "active", "True"
		if !n.ready(node) {
			state, condition = "inactive", "Unknown"
		}
		data = append(data, object{
			"id":         name,
			"type":       "node",
			"kind":       "Node",
			"apiVersion": "v1",
			"metadata": object{
				"name": name, "state": object{"name": state, "error": condition != "True"},
				"labels": object{"harvesterhci.io/managed": "true", "node-role.kubernetes.io/control-plane": "true"},
			},
			"status": object{
				"conditions": []object{{"type": "Ready", "status": condition}},
				"addresses":  []object{{"type": "InternalIP", "address": node.Address}, {"type": "Hostname", "address": name}},
			},
		})
	}
	return object{
		"type":         "collection",
		"resourceType": "node",
		"kind":         "NodeList",
		"apiVersion":   "v1",
		"count":        len(data),
		"data":         data,
		"items":        data,
	}
}
