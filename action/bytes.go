package action

import (
	"bytes"
	"encoding/json"
	"errors"
	"unicode/utf8"
)

// encodedBytes is the JSON form of bytes that are not text.
type encodedBytes struct {
	Base64 *[]byte `json:"base64"` // standard base64 (RFC 4648) with padding
}

// EncodeBytes returns a value that encoding/json can write without a loss: s itself if it is UTF-8, otherwise an object {"base64":
// …}. In a string, encoding/json would replace each byte that is not UTF-8 by U+FFFD.
func EncodeBytes(s string) any {
	if utf8.ValidString(s) {
		return s
	}
	b := []byte(s)
	return encodedBytes{&b}
}

// DecodeBytes decodes the JSON of a value that EncodeBytes has returned: text, or {"base64": …}. Errors do not contain the value.
func DecodeBytes(b []byte) (string, error) {
	if !utf8.Valid(b) {
		return "", errors.New(`invalid text; must be UTF-8: write other bytes as {"base64": …}`)
	}
	if b = bytes.TrimSpace(b); len(b) == 0 || b[0] != '{' {
		var s string
		err := json.Unmarshal(b, &s)
		return s, err
	}

	var v encodedBytes
	if err := decodeStrictly(string(b), "object", &v); err != nil || v.Base64 == nil {
		return "", errors.New(`invalid bytes: write text, or {"base64": …} with standard base64`)
	}
	return string(*v.Base64), nil
}

// Environment holds the variables of an action by name. Their values are any bytes, not only UTF-8: see EncodeBytes.
type Environment map[string]string

// MarshalJSON encodes each value by EncodeBytes, so that values that are not UTF-8 are kept.
func (e Environment) MarshalJSON() ([]byte, error) {
	if e == nil {
		return []byte("null"), nil
	}
	out := make(map[string]any, len(e))
	for name, value := range e {
		out[name] = EncodeBytes(value)
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (e *Environment) UnmarshalJSON(b []byte) error {
	var in map[string]json.RawMessage
	if err := json.Unmarshal(b, &in); err != nil || in == nil {
		*e = nil
		return err
	}
	*e = make(Environment, len(in))
	for name, raw := range in {
		value, err := DecodeBytes(raw)
		if err != nil {
			return err
		}
		(*e)[name] = value
	}
	return nil
}
