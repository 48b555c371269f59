package sqlite

import (
	"context"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// BMCRefusals say how often in a row each BMC has refused a log-in.
type BMCRefusals struct{ *db }

// BMCRefusals returns how often the BMC at address has refused a log-in since it last accepted one. The result is zero if the BMC has
// refused none since.
func (s BMCRefusals) BMCRefusals(ctx context.Context, address string) (inventory.BMCRefusals, error) {
	var row struct {
		Count       int
		Last        int64
		Credentials string
	}
	err := get(ctx, s.ro, &row, "SELECT count, last, credentials FROM bmc_refusal WHERE address = ?", address)
	if row, err = optional(row, err); err != nil || row.Count == 0 {
		return inventory.BMCRefusals{}, wrap(err, "reading the refusals of BMC %s", address)
	}
	return inventory.BMCRefusals{Count: row.Count, Last: time.Unix(0, row.Last), Credentials: strings.Fields(row.Credentials)}, nil
}

// PutBMCRefusals replaces the stored refusals of the BMC at address. If r.Count is 0, it deletes them.
func (s BMCRefusals) PutBMCRefusals(ctx context.Context, address string, r inventory.BMCRefusals) error {
	return s.write(ctx, "recording the refusals of a BMC", func(tx *transaction) error {
		if r.Count == 0 {
			return do(ctx, tx, "DELETE FROM bmc_refusal WHERE address = ?", address)
		}
		return do(ctx, tx, `INSERT INTO bmc_refusal (address, count, last, credentials) VALUES (?, ?, ?, ?)
			ON CONFLICT (address) DO UPDATE SET count = excluded.count, last = excluded.last, credentials = excluded.credentials`,
			address, r.Count, nanos(r.Last), strings.Join(r.Credentials, " "))
	})
}
