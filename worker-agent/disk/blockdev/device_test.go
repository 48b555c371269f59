package blockdev

import "testing"

func TestAllZero(t *testing.T) {
	for n := range 70 {
		b := make([]byte, n)
		if !AllZero(b) {
			t.Errorf("%d zero bytes are not all zero", n)
		}
		for i := range b {
			b[i] = 1
			if AllZero(b) {
				t.Errorf("byte %d of %d is overlooked", i, n)
			}
			b[i] = 0
		}
	}
}
