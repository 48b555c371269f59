package blockdev

import (
	"os"
	"path/filepath"

	"github.com/ingotmetal/ingot/internal/text/plaintext"
)

// Attribute reads a sysfs file of one line; it returns "" if there is none.
func Attribute(elem ...string) string {
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		return ""
	}
	return plaintext.Words(string(b))
}
