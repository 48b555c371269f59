package clock

import "syscall"

// Of <sys/timex.h>; package syscall has no names for them.
const (
	timeError = 5    // TIME_ERROR
	unsynced  = 0x40 // STA_UNSYNC
)

// Synchronized reports whether the kernel says that its clock is synchronized with another one.
func Synchronized() (bool, error) {
	var tx syscall.Timex
	state, err := syscall.Adjtimex(&tx)
	return err == nil && state != timeError && tx.Status&unsynced == 0, err
}
