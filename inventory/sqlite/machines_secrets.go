package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ingotmetal/ingot/inventory"
)

const secretColumns = "name, doc, version, user_data, vendor_data, bmc_password, bmc_candidate"

type secretRow struct {
	Name, Doc            string
	Version              int64
	UserData, VendorData []byte
	BMCPassword          []byte `db:"bmc_password"`
	BMCCandidate         []byte `db:"bmc_candidate"`
}

// A storedMachine is a machine as the database contains it, with its secrets encrypted.
type storedMachine struct {
	inventory.Machine
	sealed secretRow
}

func (r secretRow) value() (storedMachine, error) {
	m := storedMachine{sealed: r}
	return m, wrap(json.Unmarshal([]byte(r.Doc), &m.Machine), "reading machine %q", r.Name)
}

type sealedField struct {
	name, column, purpose, binding string
	sealed                         []byte
}

// sealedFields returns the encrypted secrets that r contains.
func (r secretRow) sealedFields() []sealedField {
	var m inventory.Machine
	// Ignore an error: then the bindings of the BMC's secrets are wrong, and decrypting these secrets fails.
	_ = json.Unmarshal([]byte(r.Doc), &m)
	all := []sealedField{
		{"userData", "user_data", sealUserData, userBinding(r.Name, "user"), r.UserData},
		{"vendorData", "vendor_data", sealUserData, userBinding(r.Name, "vendor"), r.VendorData},
		{"bmc.password", "bmc_password", sealBMC, bmcBinding(r.Name, m.BMC), r.BMCPassword},
		{"bmc.candidate", "bmc_candidate", sealBMC, candidateBinding(r.Name, m.BMC), r.BMCCandidate},
	}
	return slices.DeleteFunc(all, func(f sealedField) bool { return len(f.sealed) == 0 })
}

func (s *db) secrets(ctx context.Context) ([]secretRow, error) {
	var rows []secretRow
	err := s.ro.SelectContext(ctx, &rows, "SELECT "+secretColumns+" FROM machine ORDER BY name")
	return rows, err
}

// namesOfSecrets returns the names of all stored secrets for which wanted returns true, in the form "<machine>: <field>".
func (s *db) namesOfSecrets(ctx context.Context, wanted func(sealedField) bool) (names []string, err error) {
	rows, err := s.secrets(ctx)
	for _, r := range rows {
		for _, f := range r.sealedFields() {
			if wanted(f) {
				names = append(names, r.Name+": "+f.name)
			}
		}
	}
	return names, err
}

// reveal decrypts the secrets of a machine that have the given names, and returns them in the order of the names. A secret that is not
// stored is zero. If there is an error, all returned secrets are zero.
func (s *db) reveal(ctx context.Context, machine string, names ...string) ([]inventory.Secret, error) {
	out := make([]inventory.Secret, len(names))
	var r secretRow
	if err := get(ctx, s.ro, &r, "SELECT "+secretColumns+" FROM machine WHERE name = ?", machine); err != nil {
		return out, err
	}
	for _, f := range r.sealedFields() {
		if i := slices.Index(names, f.name); i >= 0 {
			plain, err := s.open(f.purpose, f.binding, f.sealed)
			if err != nil {
				return make([]inventory.Secret, len(names)), err
			}
			out[i] = inventory.NewSecret(string(plain))
		}
	}
	return out, nil
}

// UserData returns the user data and the vendor data of a machine. Each is zero if none is stored. If one of the two cannot be decrypted,
// the error is inventory.ErrSealed.
func (s Machines) UserData(ctx context.Context, name string) (user, vendor inventory.Secret, err error) {
	out, err := s.reveal(ctx, name, "userData", "vendorData")
	return out[0], out[1], wrap(err, "reading user data of machine %q", name)
}

func userBinding(machine, which string) string { return "machine=" + machine + " " + which }

func bmcBinding(machine string, b *inventory.BMC) string {
	if b == nil {
		return ""
	}
	binding := fmt.Sprintf("machine=%s driver=%s host=%s port=%d tls=%t key=%s command=%s",
		machine, b.Driver, b.Host, b.Port, !b.InsecureTLS, b.Fingerprint, b.Command)
	if b.ConsumerURL != "" {
		binding += " url=" + b.ConsumerURL
	}
	return binding
}
