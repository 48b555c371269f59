// Package inventory defines the types of Ingot's domain: machines, templates, images, grants (which run owns a machine),
// records of workflows, assignments and events. It imports only the standard library and leaf packages. Package
// inventory/sqlite stores these types.
package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/problem"
)

// Errors of the domain. Adapters wrap them. They are translated in one place for each way out of the program: in package api to HTTP
// statuses, in activities to Temporal error types, in cmd to exit codes.
var (
	ErrNotFound = errors.New("not found")
	ErrConflict = errors.New("conflict")
	ErrInvalid  = problem.ErrInvalid
	// ErrFenced: a statement changed nothing, because its run and epoch no longer own the machine. A retry does not help.
	ErrFenced = errors.New("fenced: another run owns the machine")
	// ErrClaimed: a boot that a run has given up has started nevertheless: the agent has redeemed its claim, or the installer has fetched its
	// payload.
	ErrClaimed = errors.New("the run gave this boot up, but the boot has started")
	// Errors of BMCs. If the BMC is unreachable, a run waits; if the BMC refused the credentials, it asks an operator; if the BMC does not
	// support an operation, it stops.
	ErrUnreachable = errors.New("unreachable")
	ErrRefused     = errors.New("credentials refused")
	ErrUnsupported = errors.New("unsupported")
	// ErrFull: the disk is full. The write changed nothing and may be repeated.
	ErrFull = errors.New("the disk is full")
	// ErrStale: the object was changed since the version that the caller wants to change.
	ErrStale = errors.New("changed since it was read")
	// ErrSealed: a stored secret cannot be decrypted because its key is missing or wrong.
	ErrSealed = errors.New("secret key is missing or wrong")
	// ErrSecondServer: another server is active for the same site. The server that gets this error ends, because two servers must not answer
	// the same machines.
	ErrSecondServer = errors.New("a second server")
)

// TextOf returns the text of err without a final text of ErrInvalid or ErrConflict, because clients get these two errors as a code.
func TextOf(err error) string {
	text := strings.TrimSuffix(err.Error(), ": "+ErrInvalid.Error())
	return strings.TrimSuffix(text, ": "+ErrConflict.Error())
}

// Secret is a text, or a string of bytes, that must not be shown. String, JSON and slog show only its redacted form. Reveal returns the
// text.
type Secret struct{ v string }

// NewSecret wraps v.
func NewSecret(v string) Secret { return Secret{v} }

// Reveal returns the text.
func (s Secret) Reveal() string { return s.v }

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s.v == "" }

func (s Secret) redact() string {
	if s.v == "" {
		return ""
	}
	return "[redacted]"
}

// String returns the redacted form.
func (s Secret) String() string { return s.redact() }

// GoString returns the redacted form.
func (s Secret) GoString() string { return s.redact() }

// MarshalJSON returns the redacted form.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.redact()) }

// MarshalText returns the redacted form.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.redact()), nil }

// LogValue returns the redacted form.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.redact()) }

// UnmarshalBinary stores b. Because of this method, package strictyaml accepts bytes (!!binary) for a Secret.
func (s *Secret) UnmarshalBinary(b []byte) error {
	s.v = string(b)
	return nil
}

// UnmarshalJSON reads a secret that a user has entered: text, or {"base64": …} for bytes. It refuses the redacted form with ErrInvalid:
// saving an object in the form that was shown would otherwise replace the stored secret by the redacted form.
func (s *Secret) UnmarshalJSON(b []byte) error {
	v, err := action.DecodeBytes(b)
	if err != nil {
		return err
	}
	if v == "[redacted]" {
		return fmt.Errorf("[redacted] is the redacted form of a secret: enter the secret itself: %w", ErrInvalid)
	}
	s.v = v
	return nil
}

// Problem is one error in an input.
type Problem = problem.Problem

// Problems are all problems of an input. As an error, they match ErrInvalid.
type Problems = problem.List

// Conflicts are the problems of an input that is valid, but conflicts with stored objects or with an open run. As an error, they match
// ErrConflict. errors.As can read them as Problems.
type Conflicts Problems

func (c Conflicts) Error() string { return Problems(c).Error() }

// Is makes errors.Is(err, ErrConflict) true.
func (c Conflicts) Is(target error) bool { return target == ErrConflict }

// As lets errors.As read c as Problems.
func (c Conflicts) As(target any) bool {
	p, ok := target.(*Problems)
	if ok {
		*p = Problems(c)
	}
	return ok
}
