package api

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNewNeedsEachStore checks that a store that was forgotten is found at the start, not by the first request.
func TestNewNeedsEachStore(t *testing.T) {
	s := newSite(t)
	for field := range reflect.ValueOf(Stores{}).Fields() {
		c := s.apiConfig()
		reflect.ValueOf(&c.Stores).Elem().FieldByName(field.Name).SetZero()
		_, err := New(c)
		require.EqualError(t, err, "making the API: Stores."+field.Name+" is required")
	}
}
