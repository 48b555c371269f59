package sqlite

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// Applications stores what documents describe, and remembers what it has stored.
type Applications struct{ *db }

// Apply stores the objects of a, all or none. check gets the machines that would be stored, which it may replace by their canonical forms,
// and all machines that are stored before; its error is returned. If a value is in conflict, the error is an inventory.Conflicts that lists
// all such values, unless a.Force or a.DryRun is set. Errors of PutMachines are returned, too. The result lists templates first, then
// machines, each in the order of a, and then the objects to be deleted, by name.
func (s Applications) Apply(ctx context.Context, a inventory.Application, check func(next, before []inventory.Machine) error, by string) (
	out []inventory.Applied, err error,
) {
	apply := func(tx *transaction) error {
		p, err := s.planApplication(ctx, tx, a)
		if err == nil {
			out, err = p.out, p.store(ctx, tx, check, by)
		}
		return err
	}
	if !a.DryRun {
		err = s.writeOnce(ctx, "applying documents", apply)
	}
	if err == nil && out == nil && !a.DryRun { // a repetition of a keyed request: its documents are stored already
		return alreadyApplied(a), nil
	}
	if a.DryRun {
		undo := errors.New("undo")
		err = s.write(ctx, "comparing documents", func(tx *transaction) error { return cmp.Or(apply(tx), undo) })
		if errors.Is(err, undo) {
			err = nil
		}
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// alreadyApplied returns the result for a, which was stored before.
func alreadyApplied(a inventory.Application) []inventory.Applied {
	out := []inventory.Applied{}
	for _, t := range a.Templates {
		out = append(out, inventory.Applied{Kind: inventory.KindTemplate, Name: t.Name, Result: inventory.ResultUnchanged})
	}
	for _, m := range a.Machines {
		out = append(out, inventory.Applied{Kind: inventory.KindMachine, Name: m.Name, Result: inventory.ResultUnchanged})
	}
	return out
}

// An appliedRecord is what was applied last to an object.
type appliedRecord struct {
	Run    string // see appliedKey
	Set    string `db:"set_name"`
	Sealed []byte
	fields inventory.LastApplied
}

func appliedKey(kind, name string) string { return kind + "/" + name }

// digestField returns a digest of the value of a field. It is stored encrypted only, because the value may be a short secret.
func digestField(path, value string) string {
	sum := sha256.Sum256([]byte(path + "\x00" + value))
	return base64.RawStdEncoding.EncodeToString(sum[:12])
}

// An applicationPlan is what an Application changes.
type applicationPlan struct {
	*db
	in        inventory.Application
	machines  map[string]storedMachine
	templates map[string]inventory.Template
	records   map[string]appliedRecord

	next     []inventory.Machine // to be stored
	sources  []inventory.Template
	applied  []appliedRecord
	out      []inventory.Applied
	conflict inventory.Problems
}

// planApplication reads what is stored, and compares the objects of a with it.
func (s Applications) planApplication(ctx context.Context, tx *transaction, a inventory.Application) (*applicationPlan, error) {
	p := &applicationPlan{
		db: s.db, in: a, machines: map[string]storedMachine{}, templates: map[string]inventory.Template{},
		records: map[string]appliedRecord{}, out: []inventory.Applied{},
	}
	machines, err := list[secretRow](ctx, tx, "SELECT "+secretColumns+" FROM machine")
	if err != nil {
		return nil, err
	}
	for _, m := range machines {
		p.machines[m.Name] = m
	}
	templates, err := list[templateRow](ctx, tx, "SELECT "+templateColumns+" FROM template")
	if err != nil {
		return nil, err
	}
	for _, t := range templates {
		p.templates[t.Name] = t
	}
	for _, t := range a.Templates {
		if err := p.readRecords(ctx, tx, "WHERE run = ?", appliedKey(inventory.KindTemplate, t.Name)); err != nil {
			return nil, err
		}
		p.compareTemplate(t)
	}
	for _, m := range a.Machines {
		err := p.readRecords(ctx, tx, "WHERE run = ?", appliedKey(inventory.KindMachine, m.Name))
		if err == nil {
			err = p.compareMachine(m)
		}
		if err != nil {
			return nil, fmt.Errorf("machine %q: %w", m.Name, err)
		}
	}
	return p, nil
}

// readRecords adds the records that the clause where selects.
func (p *applicationPlan) readRecords(ctx context.Context, tx *transaction, where, value string) error {
	var records []appliedRecord
	if err := tx.SelectContext(ctx, &records, "SELECT run, set_name, sealed FROM applied "+where, value); err != nil {
		return err
	}
	for _, r := range records {
		// A record that no key opens counts as the record of no field: then more values are in conflict.
		if plain, err := p.open(sealPlan, runBinding(r.Run), r.Sealed); err == nil {
			if err := json.Unmarshal(plain, &r.fields); err != nil {
				return fmt.Errorf("reading what was applied to %q: %w", r.Run, err)
			}
		}
		p.records[r.Run] = r
	}
	return nil
}

func (p *applicationPlan) compareTemplate(t inventory.Template) {
	old, exists := p.templates[t.Name]
	done := inventory.Applied{Kind: inventory.KindTemplate, Name: t.Name, Result: inventory.ResultAdded}
	if exists {
		done.Result = inventory.ResultUnchanged
		if old.Source != t.Source {
			done.Changes = []inventory.Change{{Field: "source", Old: old.Source, New: t.Source}}
		}
	}
	values := map[string]string{"source": old.Source}
	if p.finish(done, values, map[string]string{"source": t.Source}, false) {
		p.sources = append(p.sources, t)
	}
}

func (p *applicationPlan) compareMachine(given inventory.Machine) error {
	given = inventory.Canonical(given)
	stated, err := inventory.ValuesByMAC(given)
	if err != nil {
		return err
	}
	fields := inventory.StatedValues(given, stated)
	for _, f := range given.SecretFields() {
		if !f.Value.IsZero() {
			fields[f.Name] = f.Value.Reveal()
		}
	}

	old, exists := p.machines[given.Name]
	done := inventory.Applied{Kind: inventory.KindMachine, Name: given.Name, Result: inventory.ResultAdded}
	next, values, current := given, map[string]string(nil), false
	if exists {
		last := p.records[appliedKey(done.Kind, given.Name)].fields
		if !p.replaces(done.Kind) {
			next, current = last.Merge(old.describe(), given), given.Version == old.sealed.Version
			next.Version = 0
		}
		if next.BMC != nil && bmcBinding(next.Name, next.BMC) != bmcBinding(old.Name, old.BMC) {
			next.BMC.HasPassword = false // putMachine deletes the password
		}
		for _, f := range next.SecretFields() {
			if !f.Value.IsZero() && p.isStored(old, next, f.Name, *f.Value) {
				*f.Value, *f.Stored = inventory.Secret{}, true
			}
		}
		before, err := inventory.ValuesByMAC(old.describe())
		if err != nil {
			return err
		}
		after, err := inventory.ValuesByMAC(next)
		if err != nil {
			return err
		}
		done.Changes, values = inventory.Changes(before, after), p.plainValues(old, before)
		done.Result = inventory.ResultUnchanged
	}
	if p.finish(done, values, fields, current) {
		p.next = append(p.next, next)
	}
	return nil
}

// finish adds done, the comparison of an object, to the plan. values are the stored values, fields those of the document, by path. current
// is true if the document was made from the stored object. finish returns true if the object has to be stored.
func (p *applicationPlan) finish(done inventory.Applied, values, fields map[string]string, current bool) bool {
	key := appliedKey(done.Kind, done.Name)
	last, recorded := p.records[key]
	foreign, replace := recorded && last.Set != p.in.Set && done.Result != inventory.ResultAdded, p.replaces(done.Kind)
	if foreign && !replace {
		done.Foreign = &last.Set
	}
	for n, c := range done.Changes {
		done.Result = inventory.ResultChanged
		done.Changes[n].Conflict = !current && !replace && !isApplied(last.fields, values, c.Field)
	}
	if p.in.Create && done.Result == inventory.ResultChanged {
		p.conflict.Add(done.Name, "show the difference with: ingot diff --file FILE; give --replace to change it",
			"%s %q exists, with other values", done.Kind, done.Name)
	} else {
		p.conflict = append(p.conflict, done.Conflicts()...)
	}
	p.out = append(p.out, done)
	if foreign && replace { // its set finds the change as one of another client
		return done.Result != inventory.ResultUnchanged
	}

	now := inventory.LastApplied{}
	for path, value := range fields {
		now[path] = digestField(path, value)
	}
	if !recorded || last.Set != p.in.Set || !maps.Equal(last.fields, now) {
		p.applied = append(p.applied, appliedRecord{Run: key, Set: p.in.Set, fields: now})
	}
	return done.Result != inventory.ResultUnchanged
}

// replaces reports whether the documents of this kind replace what is stored.
func (p *applicationPlan) replaces(kind string) bool { return slices.Contains(p.in.Replace, kind) }

// isApplied reports whether the field at path has the value that was applied last. values are the stored values.
func isApplied(last inventory.LastApplied, values map[string]string, path string) bool {
	digest, applied := last[path]
	value, set := values[path]
	return applied == set && (!set || digest == digestField(path, value))
}

// plainValues returns the values of the fields of a stored machine by path, with the texts of its secrets. values are those of ValuesByMAC.
func (s *db) plainValues(m storedMachine, values map[string]string) map[string]string {
	out := inventory.StatedValues(m.Machine, values)
	for _, f := range m.sealed.sealedFields() {
		plain, err := s.open(f.purpose, f.binding, f.sealed)
		if err != nil {
			plain = f.sealed // equal to nothing that was applied
		}
		out[f.name] = string(plain)
	}
	delete(out, "bmc.candidate")
	return out
}

// store stores what the plan changes, or returns its conflicts.
func (p *applicationPlan) store(ctx context.Context, tx *transaction, check func(next, before []inventory.Machine) error, by string) error {
	if len(p.conflict) > 0 && !p.in.Force && !p.in.DryRun {
		return inventory.Conflicts(p.conflict)
	}
	var before []inventory.Machine
	for _, name := range slices.Sorted(maps.Keys(p.machines)) {
		before = append(before, p.machines[name].describe())
	}
	if err := check(p.next, before); err != nil {
		return err
	}
	if p.in.Prune {
		if err := p.prune(ctx, tx, by); err != nil {
			return err
		}
	}
	for _, t := range p.sources {
		if err := putTemplate(ctx, tx, t, by); err != nil {
			return err
		}
	}
	if err := putMachines(ctx, tx, p.next, true, by); err != nil {
		return err
	}

	for _, r := range p.applied {
		doc, err := toJSON(r.fields)
		if err != nil {
			return err
		}
		sealed, err := p.seal(sealPlan, runBinding(r.Run), []byte(doc))
		if err != nil {
			return err
		}
		if err := do(ctx, tx, "INSERT OR REPLACE INTO applied (run, set_name, sealed) VALUES (?,?,?)", r.Run, r.Set, sealed); err != nil {
			return err
		}
	}
	return nil
}

// prune deletes the objects of the set that are in none of the documents. It keeps those that are in use or were changed since they were
// applied.
func (p *applicationPlan) prune(ctx context.Context, tx *transaction, by string) error {
	if err := p.readRecords(ctx, tx, "WHERE set_name = ?", p.in.Set); err != nil {
		return err
	}
	given := map[string]bool{}
	for _, x := range p.out {
		given[appliedKey(x.Kind, x.Name)] = true
	}
	for _, key := range slices.Sorted(maps.Keys(p.records)) { // machines before templates, which they name
		r := p.records[key]
		kind, name, _ := strings.Cut(key, "/")
		if given[key] {
			continue
		}
		why, err := p.whyKept(ctx, tx, r, kind, name)
		if err != nil {
			return err
		}
		done := inventory.Applied{Kind: kind, Name: name, Result: inventory.ResultKept, Why: why}
		if why == "" {
			done.Result = inventory.ResultDeleted
			if kind == inventory.KindMachine {
				err = deleteMachine(ctx, tx, name, by)
				delete(p.machines, name)
			} else {
				err = deleteNamed(ctx, tx, kind, name, by)
			}
			if err != nil {
				return err
			}
		}
		p.out = append(p.out, done)
	}
	return nil
}

// whyKept returns why prune must not delete an object, or "".
func (p *applicationPlan) whyKept(ctx context.Context, tx *transaction, r appliedRecord, kind, name string) (string, error) {
	if p.in.PruneOnly != nil && !slices.Contains(p.in.PruneOnly, appliedKey(kind, name)) {
		return "it is not among those that were to be deleted; apply the documents again", nil
	}
	values := map[string]string{"source": p.templates[name].Source}
	if kind == inventory.KindMachine {
		run, err := openRun(ctx, tx, name)
		if err != nil {
			return "", err
		}
		if run != "" {
			return "its run " + run + " is open", nil
		}
		out, err := optional(scalar[int](ctx, tx, "SELECT 1 FROM standing WHERE machine = ?", name))
		if err != nil {
			return "", err
		}
		if out == 1 {
			return "it was decommissioned; delete it with ingot machine delete " + name, nil
		}
		err = noMedia(ctx, tx, name)
		if errors.Is(err, inventory.ErrConflict) {
			return "an image is in its virtual drive", nil
		}
		if err == nil {
			values, err = inventory.ValuesByMAC(p.machines[name].describe())
		}
		if err != nil {
			return "", err
		}
		values = p.plainValues(p.machines[name], values)
	} else if m := p.userOf(name); m != "" {
		return "machine " + m + " names it", nil
	}

	if r.fields == nil && !p.in.Force {
		return "no key opens what was applied last", nil
	}
	if _, given := r.fields["bmc.password"]; !given {
		delete(values, "bmc.password") // it was given for the BMC of the document, or comes from a rotation
	}
	paths := maps.Clone(values)
	maps.Copy(paths, r.fields)
	var changed []string
	for path := range paths {
		if !isApplied(r.fields, values, path) {
			changed = append(changed, path)
		}
	}
	if len(changed) == 0 || p.in.Force {
		return "", nil
	}
	slices.Sort(changed)
	return "changed since: " + strings.Join(changed[:min(len(changed), maxFields)], ", "), nil
}

// userOf returns a machine that will name the template, or "".
func (p *applicationPlan) userOf(template string) string {
	users := map[string]bool{}
	for name, m := range p.machines {
		users[name] = m.Template == template
	}
	for _, m := range p.next {
		users[m.Name] = m.Template == template
	}
	for _, name := range slices.Sorted(maps.Keys(users)) {
		if users[name] {
			return name
		}
	}
	return ""
}
