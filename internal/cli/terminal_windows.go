package cli

import (
	"os"

	"golang.org/x/sys/windows"
)

// readsEscapes makes a console read escape sequences, and reports whether it does. Before Windows 10, no console did.
func readsEscapes(f *os.File) bool {
	console := windows.Handle(f.Fd())
	var mode uint32
	return windows.GetConsoleMode(console, &mode) == nil &&
		windows.SetConsoleMode(console, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
