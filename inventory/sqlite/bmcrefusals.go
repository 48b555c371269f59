package sqlite

import (
	"context"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// BMCRefusals are the log-ins that BMCs have refused.
type BMCRefusals struct{ *db }

// BMCRefusals returns the log-ins that the BMC at address has refused since it accepted one; zero if there are none.
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

// PutBMCRefusals replaces the refusals of the BMC at address. A count of 0 removes them.
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
