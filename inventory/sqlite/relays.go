package sqlite

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// Relays are the DHCP relays that were seen.
type Relays struct{ *db }

// maxRelays limits the rows that packets can create. Forged giaddrs remove only the relays that
// had no contact for the longest time, and those are recorded again at their next packet.
const maxRelays = 256

// PutRelay records a packet of the relay with this giaddr. A time older than the stored one
// changes nothing, unless the stored one is in the future because a clock was ahead.
func (s Relays) PutRelay(ctx context.Context, giaddr netip.Addr, at time.Time) error {
	return s.write(ctx, fmt.Sprintf("recording a packet of relay %s", giaddr), func(tx *transaction) error {
		now := nanos(s.now())
		return doAll(ctx, tx,
			stmt(`INSERT INTO relay (giaddr, heard) VALUES (?, ?)
				ON CONFLICT (giaddr) DO UPDATE SET heard =
					CASE WHEN heard > ? THEN excluded.heard ELSE max(heard, excluded.heard) END`,
				giaddr.String(), nanos(at), now),
			stmt(`DELETE FROM relay WHERE giaddr IN
				(SELECT giaddr FROM relay ORDER BY heard > ?, heard DESC LIMIT -1 OFFSET ?)`, now, maxRelays),
		)
	})
}

// Relayed returns the time of the last contact with the relay of this giaddr, or the zero time if never.
func (s Relays) Relayed(ctx context.Context, giaddr netip.Addr) (time.Time, error) {
	n, err := optional(scalar[int64](ctx, s.ro, "SELECT heard FROM relay WHERE giaddr = ?", giaddr.String()))
	return moment(n), wrap(err, "reading the last contact with relay %s", giaddr)
}
