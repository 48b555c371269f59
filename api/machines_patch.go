package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/mergepatch"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// patchMachine is a change of a machine: a JSON merge patch of its document.
type patchMachine struct {
	byName
	IfMatch string `header:"If-Match" json:"-"`
	// Clear lists the secrets that a null in the patch removes, separated by commas.
	Clear string `query:"clear" json:"-"`
	// YAML lists the fields, network or storage, that the patch has as texts of YAML, separated by commas. A text replaces the field,
	// and problems in it name its lines.
	YAML string `query:"yaml" json:"-"`

	version int64
	patch   map[string]any
	texts   map[string]string // the fields of YAML, which are not in patch
}

// UnmarshalJSON reads the patch.
func (q *patchMachine) UnmarshalJSON(b []byte) error {
	v, err := mergepatch.Decode(b)
	if err != nil {
		return err
	}
	patch, isObject := v.(map[string]any)
	if !isObject {
		return inventory.Invalid("", "send the fields to change", "must be an object")
	}
	q.patch = patch
	return nil
}

// Validate parses If-Match.
func (q *patchMachine) Validate() error {
	const remedy = `send the ETag of GET, for example If-Match: "7"`
	if q.IfMatch == "" {
		return httpapi.Refuse(http.StatusPreconditionRequired, httpapi.CodeInvalid, "If-Match is missing: "+remedy, "")
	}
	text, err := strconv.Unquote(q.IfMatch)
	if err == nil {
		q.version, err = strconv.ParseInt(text, 10, 64)
	}
	if err != nil || q.version < 1 {
		return inventory.Invalid("If-Match", remedy, "invalid version %q", q.IfMatch)
	}
	return q.takeTexts()
}

// takeTexts moves the fields that YAML lists from patch to texts.
func (q *patchMachine) takeTexts() error {
	if q.YAML == "" {
		return nil
	}
	q.texts = map[string]string{}
	for field := range strings.SplitSeq(q.YAML, ",") {
		text, isText := q.patch[field].(string)
		switch {
		case field != "network" && field != "storage":
			return inventory.Invalid("yaml", "network, storage, or both, separated by a comma", "invalid field %q", field)
		case !isText:
			return inventory.Invalid(field, "send YAML in a text", "must be a text")
		}
		q.texts[field] = text
		delete(q.patch, field)
	}
	return nil
}

// applyTexts sets the fields of texts, and removes those whose text is blank.
func (q *patchMachine) applyTexts(problems *inventory.Problems, next *inventory.Machine) error {
	for field, text := range q.texts {
		var into any
		if field == "network" {
			next.Network, into = nil, &next.Network
		} else {
			next.Storage, into = nil, &next.Storage
		}
		if strings.TrimSpace(text) == "" {
			continue
		}
		var found inventory.Problems
		if err := strictyaml.Decode("", []byte(text), into); err != nil && !errors.As(err, &found) {
			return err
		}
		for _, p := range found {
			p.Field = strings.TrimSuffix(field+"."+p.Field, ".")
			*problems = append(*problems, p)
		}
	}
	return nil
}

// locate adds lines to the problems of texts.
func (q *patchMachine) locate(ps inventory.Problems) inventory.Problems {
	for i, p := range ps {
		field, part, _ := strings.Cut(p.Field, ".")
		if text, ok := q.texts[field]; ok && p.Line == 0 {
			ps[i].Line = strictyaml.Locate("", []byte(text), inventory.Problems{{Field: part}})[0].Line
		}
	}
	return ps
}

// patch changes a machine, if its version is still the one that the client has read.
func (m *machines) patch(ctx context.Context, q patchMachine) (apitypes.MachineView, error) {
	var out apitypes.MachineView
	before, err := m.find(ctx, q.Name)
	if err != nil {
		return out, err
	}
	if before.Version != q.version {
		return out, fmt.Errorf("machine %q: version %d is stored, and the change was made to version %d: %w",
			q.Name, before.Version, q.version, inventory.ErrStale)
	}

	next, problems, err := q.apply(before)
	if err != nil {
		return out, err
	}
	ms := []inventory.Machine{next}
	var found inventory.Problems
	if err := m.validate(ms, []inventory.Machine{before}, m.netboot.network()); err != nil && !errors.As(err, &found) {
		return out, err
	}
	if err := q.locate(machinefile.Undisputed(problems, found)).Err(); err != nil {
		return out, err
	}
	if err := m.stores.Machines.ChangeMachine(ctx, ms[0], httpapi.Actor(ctx)); err != nil {
		return out, err
	}

	after, err := m.stores.Machines.Machines(ctx)
	if err != nil {
		return out, err
	}
	out, err = m.get(ctx, q.byName)
	out.Warnings = m.warnings(ctx, ms, []inventory.Machine{before}, after)
	return out, err
}

// apply returns before as the patch changes it, and what is wrong with the patch.
func (q *patchMachine) apply(before inventory.Machine) (next inventory.Machine, problems inventory.Problems, err error) {
	raw, err := json.Marshal(inventory.DocumentOf(before))
	if err != nil {
		return next, nil, err
	}
	doc, err := mergepatch.Decode(raw)
	if err != nil {
		return next, nil, err
	}
	if raw, err = json.Marshal(mergepatch.Apply(doc, q.patch)); err != nil {
		return next, nil, err
	}
	if err := strictyaml.DecodeJSON(raw, &next); err != nil && !errors.As(err, &problems) {
		return next, nil, err
	}

	if err := q.applyTexts(&problems, &next); err != nil {
		return next, nil, err
	}
	for _, field := range inventory.ServerFields() {
		if _, named := mergepatch.Find(q.patch, field); named {
			problems.Add(field, "leave it out", "the server sets this field")
		}
	}
	if next.Name != before.Name {
		problems.Add("name", "add a machine under the other name, and delete this one", "a machine cannot be renamed")
	}
	q.applySecrets(&problems, &next, before)
	next.Version = q.version
	return next, problems, nil
}

// applySecrets makes next keep the stored secrets, except those that the patch sets, or sets to null and Clear lists.
func (q *patchMachine) applySecrets(problems *inventory.Problems, next *inventory.Machine, before inventory.Machine) {
	var clearing []string
	if q.Clear != "" {
		clearing = strings.Split(q.Clear, ",")
	}
	stored := map[string]bool{}
	for _, f := range before.SecretFields() {
		stored[f.Name] = *f.Stored
	}

	for _, f := range next.SecretFields() {
		given, named := mergepatch.Find(q.patch, f.Name)
		at := slices.Index(clearing, f.Name)
		switch {
		case named && given == nil && at >= 0:
			clearing = slices.Delete(clearing, at, at+1)
		case named && given == nil:
			problems.Add(f.Name, "leave it out to keep the stored secret; to remove it, add ?clear="+f.Name, "must not be null")
		case named && f.Value.IsZero():
			problems.Add(f.Name, "leave it out to keep the stored secret", "is empty")
		default:
			*f.Stored = stored[f.Name]
		}
	}
	for _, f := range before.SecretFields() { // of an object that the patch removes
		at := slices.Index(clearing, f.Name)
		switch {
		case slices.ContainsFunc(next.SecretFields(), func(x inventory.SecretField) bool { return x.Name == f.Name }):
		case at >= 0:
			clearing = slices.Delete(clearing, at, at+1)
		case stored[f.Name]:
			problems.Add(f.Name, "to delete it as well, add ?clear="+f.Name, "the stored secret would be deleted")
		}
	}
	for _, name := range clearing {
		problems.Add("clear", "", "%q must be the name of a secret that the patch sets to null", name)
	}
}
