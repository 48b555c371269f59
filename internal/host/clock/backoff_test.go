package clock

import (
	"testing"
	"time"
)

func TestBackoffGrowsAndIsBounded(t *testing.T) {
	t.Parallel()
	b := Backoff{Max: 5 * time.Second}
	b.next = 100 * time.Millisecond
	seen := map[time.Duration]bool{}
	for i := range 200 {
		d := b.step()
		if d > 5*time.Second || d < min(50*time.Millisecond<<min(i, 10), 2500*time.Millisecond) {
			t.Fatalf("pause %d takes %s", i, d)
		}
		seen[d] = true
	}
	if len(seen) < 100 {
		t.Fatalf("%d different pauses: the agents of a site come all at once", len(seen))
	}
}
