package backup

import (
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// damaged is an archive that differs from what was written.
func damaged(format string, args ...any) error {
	return refuse("the backup is damaged: "+format, args...)
}

// refused is inventory.ErrInvalid, without its text.
type refused struct{ error }

func (refused) Is(target error) bool { return target == inventory.ErrInvalid }

func refuse(format string, args ...any) error { return refused{fmt.Errorf(format, args...)} }
