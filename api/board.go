package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	// coalesce is the pause after each refresh of the board. All changes during the pause are in the next refresh.
	coalesce = 200 * time.Millisecond
	// statusEvery is how often the board reads the status. It then also rebuilds the machines that may have changed
	// without a write to the inventory, because a netboot window has expired or an agent has reported.
	statusEvery = 5 * time.Second
	// reloadEvery is how often the board reads everything again, because the deletion of old records reports no
	// changes.
	reloadEvery = 15 * time.Minute
	// recentOperations is how many of the newest operations the board shows.
	recentOperations = 20
	// maxBatches is how many versions of changes are kept. A viewer that missed more versions gets everything again.
	maxBatches = 50
)

// ChangeStore reports which machines and operations are changed by writes to the inventory.
type ChangeStore interface {
	Subscribe() (ch <-chan struct{}, cancel func())
	Follow() (take func() (machines []string, operations bool), cancel func())
}

type boardConfig struct {
	changes    ChangeStore
	views      *views
	operations OperationStore
	status     *statusRoutes
	engine     *engine.Engine
	guard      *guard.Guard
	log        *slog.Logger
}

// board holds what event streams send: one item per machine, the newest operations and the status. The items are stored
// as JSON. A refresh reads what has changed since the previous refresh, once for all viewers. Without viewers, the
// board is not refreshed, and the store collects the changes. So the next viewer need not wait until everything is read
// again.
type board struct {
	boardConfig
	streams streams

	changed engine.Notifier // notified after each refresh, even if the refresh failed

	refreshing sync.Mutex // held during a refresh; guards take and loaded

	mu      sync.Mutex
	viewers int
	stop    func() // ends the goroutine that runs keep, and waits until it has ended
	take    func() (machines []string, operations bool)
	loaded  time.Time // when everything was last read
	err     error
	version int64
	cells   map[cellKey][]byte
	moving  map[string]inventory.MachineState // machines whose item changes without a write to the inventory
	batches []batch
}

func newBoard(c boardConfig) *board {
	return &board{boardConfig: c, streams: streams{of: map[string]int{}}}
}

// cellKey identifies an item of a stream. event is the kind of the item, and key is the name of a machine or the run of
// an operation.
type cellKey struct{ event, key string }

// batch is the text of the changes from the previous version to the version in the batch.
type batch struct {
	version int64
	text    []byte
}

// join adds a viewer and returns the function that removes this viewer. While there are viewers, the board is
// refreshed.
func (b *board) join() (leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.viewers++; b.viewers == 1 {
		// The board was not refreshed since the last viewer left. With version 0, nothing is sent until the first
		// refresh.
		b.version, b.batches, b.err = 0, nil, nil
		if b.take == nil {
			b.take, _ = b.changes.Follow() // never cancelled, so that changes are collected until the server stops
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		b.stop = func() { cancel(); <-done }
		go func() {
			defer close(done)
			b.keep(ctx)
		}()
	}
	return func() {
		b.mu.Lock()
		var stop func()
		if b.viewers--; b.viewers == 0 {
			stop = b.stop
		}
		b.mu.Unlock()
		if stop != nil {
			stop()
		}
	}
}

// keep refreshes the board until ctx is done.
func (b *board) keep(ctx context.Context) {
	stored, cancelStored := b.changes.Subscribe()
	defer cancelStored()
	moved, cancelMoved := b.engine.Agents.Changed.Subscribe()
	defer cancelMoved()
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()

	for ticked := true; ; {
		err := b.tryRefresh(ctx, ticked)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			b.log.Warn("refreshing the board", "error", err)
		}
		b.finish(err)

		select {
		case <-time.After(coalesce):
		case <-ctx.Done():
			return
		}
		ticked = false
		select {
		case <-stored:
		case <-moved:
		case <-tick.C:
			ticked = true
		case <-ctx.Done():
			return
		}
	}
}

// errPanicked is the error of a refresh that panicked. The panic itself is logged.
var errPanicked = errors.New("refreshing the board panicked")

// tryRefresh calls refresh and returns errPanicked if it panics.
func (b *board) tryRefresh(ctx context.Context, ticked bool) (err error) {
	defer func() {
		if v := recover(); v != nil {
			b.guard.Caught("what pages show", v)
			err = errPanicked
		}
	}()
	return b.refresh(ctx, ticked)
}

// finish stores the result of a refresh (an error or nil) and wakes the viewers.
func (b *board) finish(err error) {
	b.mu.Lock()
	b.err = err
	b.mu.Unlock()
	b.changed.Notify()
}

// refresh reads the objects that have changed and publishes the differences. Every reloadEvery it reads all objects. If
// ticked, it also reads the status and the machines that may have changed without a write to the inventory.
func (b *board) refresh(ctx context.Context, ticked bool) error {
	b.refreshing.Lock()
	defer b.refreshing.Unlock()
	loaded := b.loaded
	b.loaded = time.Time{} // take returns each change only once, so after an error read everything again
	names, operations := b.take()
	names = append(names, b.engine.Runs.TakeStarted()...)
	all := time.Since(loaded) > reloadEvery
	if all {
		loaded = time.Now()
	}

	cells := map[cellKey][]byte{} // nil = removed
	states, err := b.readTouched(ctx, all, names)
	if err == nil && (all || operations) {
		err = b.addOperations(ctx, cells)
	}
	if err != nil {
		return err
	}
	if ticked {
		b.addStatus(ctx, cells)
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if all {
		b.removeMachines(cells)
	}
	for _, name := range names {
		cells[cellKey{"machine", name}] = nil
		delete(b.moving, name)
	}
	for _, st := range b.addMoving(states, ticked) {
		data, err := encode("machine "+st.Name, row(b.views.ofState(st, nil)))
		if err != nil {
			return err
		}
		cells[cellKey{"machine", st.Name}] = data
	}
	b.publish(cells)
	b.loaded = loaded

	return nil
}

// addMoving returns states plus machines that may have changed without a write to the inventory: those whose agent has
// reported progress and, if ticked, all in b.moving. Before that, it adds to b.moving the machines of states that have
// an open run or a grant. The caller holds mu.
func (b *board) addMoving(states []inventory.MachineState, ticked bool) []inventory.MachineState {
	for _, st := range states {
		if st.Workflow != nil && !inventory.Final(st.Workflow.State) || st.Grant.Run != "" {
			b.moving[st.Name] = st
		}
	}
	for _, name := range b.engine.Agents.TakeProgressed() {
		if st, ok := b.moving[name]; ok {
			states = append(states, st)
		}
	}
	if ticked {
		states = slices.AppendSeq(states, maps.Values(b.moving))
	}

	return states
}

// readTouched reads the states of the named machines; if all is set, of all machines. It also finds runs that have no
// record yet.
func (b *board) readTouched(ctx context.Context, all bool, names []string) ([]inventory.MachineState, error) {
	switch {
	case all:
		return b.views.states(ctx, nil)
	case len(names) == 0:
		return nil, nil
	}
	return b.views.states(ctx, names)
}

// removeMachines sets the cell of each shown machine to nil, which means that the machine is removed. Afterwards, the
// caller sets the cells of the machines that still exist. The caller holds mu.
func (b *board) removeMachines(cells map[cellKey][]byte) {
	b.moving = map[string]inventory.MachineState{}
	for k := range b.cells {
		if _, ok := cells[k]; !ok && k.event == "machine" {
			cells[k] = nil
		}
	}
}

// publish compares cells with what is shown. If cells differ, it stores them as a new version, with the text of the
// changes. If none differs, the version stays the same.
func (b *board) publish(cells map[cellKey][]byte) {
	if b.cells == nil {
		b.cells = map[cellKey][]byte{}
	}
	version := max(b.version+1, time.Now().UnixMilli()) // the time makes versions grow even across a restart of the server
	var text bytes.Buffer
	for k, data := range cells {
		old, had := b.cells[k]
		switch {
		case data == nil && !had, data != nil && had && bytes.Equal(old, data):
			continue
		case data == nil:
			delete(b.cells, k)
			data = encodeRemoval(k)
		default:
			b.cells[k] = data
		}
		writeFrame(&text, version, k.event, data)
	}
	if text.Len() == 0 && b.version != 0 {
		return
	}
	b.version = version
	b.batches = append(b.batches, batch{version, text.Bytes()})
	if n := len(b.batches) - maxBatches; n > 0 {
		b.batches = slices.Delete(b.batches, 0, n)
	}
}

// encodeRemoval returns the data that tells viewers that a machine or an operation was removed.
func encodeRemoval(k cellKey) []byte {
	field := "name"
	if k.event == "operation" {
		field = "run"
	}
	data, err := json.Marshal(map[string]any{field: k.key, "deleted": true})
	if err != nil {
		panic(err) // strings and booleans can always be encoded
	}
	return data
}

// since returns the changes from a viewer's version to the newest version, and the number of the newest version. If the
// viewer's version is 0 or too old, since returns all items. Before the first refresh, it returns no text.
func (b *board) since(version int64) ([]byte, int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.err != nil:
		return nil, version, b.err
	case b.version == version:
		return nil, version, nil
	case version == 0 || version < b.batches[0].version:
		return b.encodeAll(), b.version, nil
	}
	var text []byte
	for _, x := range b.batches {
		if x.version > version {
			text = append(text, x.text...)
		}
	}
	return text, b.version, nil
}

// encodeAll returns the text with which a stream begins: all machines in one event, then the operations and the status.
func (b *board) encodeAll() []byte {
	names := make([]string, 0, len(b.cells))
	size := 0
	for k, data := range b.cells {
		if size += len(data) + 64; k.event == "machine" {
			names = append(names, k.key)
		}
	}
	slices.Sort(names)
	var rows, text bytes.Buffer
	rows.Grow(size)
	rows.WriteString(`{"items":[`)
	for i, name := range names {
		if i > 0 {
			rows.WriteByte(',')
		}
		rows.Write(b.cells[cellKey{"machine", name}])
	}
	rows.WriteString("]}")
	text.Grow(size)
	writeFrame(&text, b.version, "machines", rows.Bytes())
	for k, data := range b.cells {
		if k.event != "machine" {
			writeFrame(&text, b.version, k.event, data)
		}
	}
	return text.Bytes()
}

func writeFrame(b *bytes.Buffer, id int64, event string, data []byte) {
	fmt.Fprintf(b, "id: %d\nevent: %s\ndata: ", id, event)
	b.Write(data)
	b.WriteString("\n\n")
}

func encode(what string, v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", what, err)
	}
	return data, nil
}

// addStatus sets the cell of the status. If the status cannot be read, it logs the error, and the previous status
// stays.
func (b *board) addStatus(ctx context.Context, cells map[cellKey][]byte) {
	st, err := b.status.read(ctx)
	var data []byte
	if err == nil {
		data, err = encode("the status", st)
	}
	if err != nil {
		b.log.Warn("reading the status for pages", "error", err)
		return
	}
	cells[cellKey{"status", ""}] = data
}

// addOperations sets the cells of the newest operations and removes the cells of all other operations.
func (b *board) addOperations(ctx context.Context, cells map[cellKey][]byte) error {
	ops, err := b.operations.Operations(ctx, inventory.OperationFilter{Limit: recentOperations})
	if err != nil {
		return err
	}
	b.mu.Lock()
	for k := range b.cells {
		if k.event == "operation" {
			cells[k] = nil
		}
	}
	b.mu.Unlock()
	for _, o := range ops {
		o.Input = nil
		if cells[cellKey{"operation", o.Run}], err = encode("operation "+o.Run, o); err != nil {
			return err
		}
	}
	return nil
}

// maxRowText limits the message of a run on the board, in bytes.
const maxRowText = 300

// row returns v without the fields that the list of machines does not show.
func row(v apitypes.MachineView) apitypes.MachineView {
	v.Disks, v.DiskSelector, v.ProtectedDisks, v.SSHKeys, v.KernelArgs, v.Notes = nil, nil, nil, nil, nil, nil
	v.BootFromDisk, v.HasUserData, v.HasVendorData, v.Created = "", false, false, time.Time{}
	// LastSeen is truncated to minutes, so that it changes at most once a minute and is not sent more often.
	v.LastSeen = v.LastSeen.Truncate(time.Minute)
	interfaces := make([]inventory.Interface, len(v.Interfaces))
	for i, x := range v.Interfaces {
		interfaces[i] = inventory.Interface{MAC: x.MAC, Address: x.Address, Hostname: x.Hostname}
	}
	v.Interfaces = interfaces
	if v.BMC != nil {
		v.BMC = &inventory.BMC{Driver: v.BMC.Driver}
	}
	if v.Workflow == nil {
		return v
	}
	w := *v.Workflow
	w.Disk, w.Digest, w.Next, w.Message = nil, "", "", plaintext.Head(w.Message, maxRowText)
	actions := []inventory.ActionRecord{}
	if !inventory.Final(w.State) {
		for _, a := range w.Actions {
			actions = append(actions, inventory.ActionRecord{
				Name: a.Name, State: a.State, Attempt: a.Attempt, StartedAt: a.StartedAt, Done: a.Done, Total: a.Total,
			})
		}
	}
	w.Actions = actions
	v.Workflow = &w
	return v
}
