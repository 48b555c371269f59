package sqlite

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// Relays are the DHCP relays from which packets have arrived.
type Relays struct{ *db }

// maxRelays is how many relays are stored at most, because a packet with a forged giaddr adds a relay, too. A new relay replaces the one
// whose last packet is oldest. A real relay that was replaced is stored again at its next packet.
const maxRelays = 256

// PutRelay records when a packet from the relay with this giaddr arrived. If a later time is stored already, it is kept, unless it is in
// the future, which shows that the clock was ahead.
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

// Relayed returns the time of the last packet from the relay with this giaddr, or the zero time if there was none.
func (s Relays) Relayed(ctx context.Context, giaddr netip.Addr) (time.Time, error) {
	n, err := optional(scalar[int64](ctx, s.ro, "SELECT heard FROM relay WHERE giaddr = ?", giaddr.String()))
	return moment(n), wrap(err, "reading the last contact with relay %s", giaddr)
}
