package backup

import (
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// damaged returns the error of an archive whose content has changed since it was written.
func damaged(format string, args ...any) error {
	return refuse("the backup is damaged: "+format, args...)
}

// refused is an error with a text of its own, for which errors.Is reports that it is inventory.ErrInvalid.
type refused struct{ error }

func (refused) Is(target error) bool { return target == inventory.ErrInvalid }

func refuse(format string, args ...any) error { return refused{fmt.Errorf(format, args...)} }
