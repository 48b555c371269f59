package inventory

import (
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
)

// A Size is a number of bytes. In JSON, it is written as a number. It is read from a number or from a text with a unit.
type Size int64

// units are the decimal and binary units of a Size, in bytes.
var units = map[string]int64{
	"B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50,
}

var sizeText = regexp.MustCompile(`^([0-9]{1,19})(\.[0-9]{1,9})? ?([kKMGTP]?i?B)?$`)

// ParseSize reads "500GB", "1.5TiB" or a whole number of bytes, and rounds down to a whole byte. For any other text, the error is
// ErrInvalid.
func ParseSize(s string) (Size, error) {
	m := sizeText.FindStringSubmatch(s)
	if m != nil {
		unit, known := units[m[3]]
		if m[3] == "" {
			unit, known = 1, m[2] == ""
		}
		if n, ok := new(big.Rat).SetString(m[1] + m[2]); ok && known {
			n.Mul(n, new(big.Rat).SetInt64(unit))
			if bytes := new(big.Int).Quo(n.Num(), n.Denom()); bytes.IsInt64() {
				return Size(bytes.Int64()), nil
			}
		}
	}
	return 0, fmt.Errorf("invalid size %q; must be a number of bytes, or a size such as 500GB or 1.5TiB: %w", s, ErrInvalid)
}

// UnmarshalJSON reads a number of bytes, or a text that ParseSize reads.
func (s *Size) UnmarshalJSON(b []byte) error {
	var n int64
	if err := json.Unmarshal(b, &n); err == nil {
		*s = Size(n)
		return nil
	}

	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		text = string(b)
	}
	v, err := ParseSize(text)
	if err == nil {
		*s = v
	}
	return err
}

// TextPattern returns the regular expression for a size in a file.
func (*Size) TextPattern() string { return `^[0-9]+(\.[0-9]+)? ?([kKMGTP]?B|[KMGTP]iB)$|^[0-9]+$` }
