package systems

import (
	"net/netip"

	"github.com/ingotmetal/ingot/inventory"
)

// All knows the documents of all systems; it is what package genesis needs of them.
type All struct{}

// Review does what [Review] does.
func (All) Review(kind, file string, contents []byte) (problems, warnings inventory.Problems) {
	return Review(kind, file, contents)
}

// CheckRelay does what [Relay] describes. A system that relays no DHCP has no problems.
func (All) CheckRelay(kind string, contents []byte, server netip.Addr) inventory.Problems {
	if relay, ok := Of(kind).(Relay); ok {
		return relay.CheckRelay(contents, server)
	}
	return nil
}

// Disks does what [Disks] describes. A document that names no disks has none.
func (All) Disks(kind string, contents []byte) []string {
	if disks, ok := Of(kind).(Disks); ok {
		return disks.Disks(contents)
	}
	return nil
}

// Downloads does what [Downloads] describes. A system that fetches no images has none.
func (All) Downloads(kind string, contents []byte) []string {
	if d, ok := Of(kind).(Downloads); ok {
		return d.Downloads(contents)
	}
	return nil
}
