package backup

import (
	"fmt"

	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// damaged returns the error of an archive whose content has changed since it was written.
func damaged(format string, args ...any) error {
	return refuse("the backup is damaged: "+format, args...)
}

// refuse returns an inventory.ErrInvalid with a text of its own.
func refuse(format string, args ...any) error {
	return human.WithKind(fmt.Errorf(format, args...), inventory.ErrInvalid)
}
