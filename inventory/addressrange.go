package inventory

import (
	"fmt"
	"net/netip"
	"strings"
)

// MaxRange is the maximum number of addresses in a Range.
const MaxRange = 1024

// A Range is a range of IPv4 addresses, written as 10.0.20.200-10.0.20.230.
type Range struct{ From, To netip.Addr }

// String returns the text of r, "" for the zero Range.
func (r Range) String() string {
	if r == (Range{}) {
		return ""
	}
	return r.From.String() + "-" + r.To.String()
}

// MarshalText implements encoding.TextMarshaler.
func (r Range) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. Its error is ErrInvalid.
func (r *Range) UnmarshalText(b []byte) error {
	from, to, _ := strings.Cut(strings.ReplaceAll(string(b), " ", ""), "-")
	var out Range
	var err error
	if out.From, err = netip.ParseAddr(from); err == nil {
		out.To, err = netip.ParseAddr(to)
	}
	if err != nil {
		return fmt.Errorf("invalid range %q; must be a range such as 10.0.20.200-10.0.20.230: %w", b, ErrInvalid)
	}
	if err := out.Check(); err != nil {
		return err
	}
	*r = out
	return nil
}

// Overlaps reports whether r and x have an address in common.
func (r Range) Overlaps(x Range) bool { return r.Contains(x.From) || x.Contains(r.From) }

// Check returns ErrInvalid unless r has 1 to MaxRange IPv4 addresses.
func (r Range) Check() error {
	if !r.From.Is4() || !r.To.Is4() || r.To.Less(r.From) {
		return fmt.Errorf("invalid range %s; must be two IPv4 addresses, the lower one first: %w", r, ErrInvalid)
	}
	a := r.From
	for range MaxRange {
		if a == r.To {
			return nil
		}
		a = a.Next()
	}
	return fmt.Errorf("invalid range %s; must have at most %d addresses: %w", r, MaxRange, ErrInvalid)
}

// Contains reports whether a is in r.
func (r Range) Contains(a netip.Addr) bool { return r.From.Compare(a) <= 0 && a.Compare(r.To) <= 0 }
