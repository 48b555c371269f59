package sbat

// A stage is a program of a Secure Boot chain.
type stage struct {
	// component must be in the section .sbat of the program. Without this rule, an old program that has no such section
	// would pass every minimum.
	component string
	next      string // file that the program starts; "" for the last one
	signed    bool   // started only with Secure Boot, so it must be signed
}

// stages holds the programs of all Secure Boot chains, by their files. snponly.efi is also started without Secure
// Boot.
var stages = map[string]stage{
	"shimx64.efi":      {"shim", "grubx64.efi", true},
	"grubx64.efi":      {"grub", "", true},
	"snponly-shim.efi": {"shim", "snponly.efi", true},
	"snponly.efi":      {"ipxe", "", false},
}

// Chain returns the files that firmware needs to start the loader in the file name: that file and the files of the
// following stages.
func Chain(name string) []string {
	out := []string{name}
	for next := stages[name].next; next != ""; next = stages[next].next {
		out = append(out, next)
	}
	return out
}

// MustBeSigned reports whether a program must be signed, because it is started only with Secure Boot; name is its file.
func MustBeSigned(name string) bool { return stages[name].signed }
