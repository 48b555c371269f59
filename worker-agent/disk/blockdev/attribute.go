package blockdev

import (
	"os"
	"path/filepath"

	"github.com/ingotmetal/ingot/internal/text/plaintext"
)

// Attribute returns the content of a sysfs file that has one line, or "" if the file cannot be read.
func Attribute(elem ...string) string {
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		return ""
	}
	return plaintext.Words(string(b))
}
