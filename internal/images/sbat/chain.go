package sbat

// A stage is a program of a chain of Secure Boot.
type stage struct {
	// component is the one that the program must have, so that an old program without a section .sbat is not taken
	// for one without a minimum.
	component string
	next      string // the file that the program starts; "" = none of these
	signed    bool   // Secure Boot always needs its signature
}

// stages are the programs of all chains, by their files. snponly.efi is also started without Secure Boot.
var stages = map[string]stage{
	"shimx64.efi":      {"shim", "grubx64.efi", true},
	"grubx64.efi":      {"grub", "", true},
	"snponly-shim.efi": {"shim", "snponly.efi", true},
	"snponly.efi":      {"ipxe", "", false},
}

// Chain returns the files that firmware needs to start the loader name: itself, and the stages after it.
func Chain(name string) []string {
	out := []string{name}
	for next := stages[name].next; next != ""; next = stages[next].next {
		out = append(out, next)
	}
	return out
}

// MustBeSigned reports whether the file name is only started with Secure Boot.
func MustBeSigned(name string) bool { return stages[name].signed }
