package blockdev

import (
	"os"
	"path/filepath"

	"github.com/ingotmetal/ingot/internal/text/plaintext"
)

// Attribute returns the content of a sysfs file of one line, or "" if it cannot be read.
func Attribute(elem ...string) string {
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		return ""
	}
	return plaintext.Words(string(b))
}
