package clock

import "syscall"

// Constants of <sys/timex.h> that package syscall lacks.
const (
	timeError = 5    // TIME_ERROR
	unsynced  = 0x40 // STA_UNSYNC
)

// Synchronized reports whether the kernel considers its clock synchronized, as NTP daemons tell it.
func Synchronized() (bool, error) {
	var tx syscall.Timex
	state, err := syscall.Adjtimex(&tx)
	return err == nil && state != timeError && tx.Status&unsynced == 0, err
}
