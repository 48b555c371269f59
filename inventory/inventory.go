// Package inventory holds Ingot's domain: machines and what is known of them,
// templates, images, the grant that says which run owns a machine, workflow
// records, assignments and events. It imports no more than the standard library and
// leaf packages; inventory/sqlite stores these types.
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

// The error vocabulary. Adapters wrap these; each edge maps them once: api to
// HTTP statuses, activities to Temporal error types, cmd to exit codes.
var (
	ErrNotFound = errors.New("not found")
	ErrConflict = errors.New("conflict")
	ErrInvalid  = problem.ErrInvalid
	// ErrFenced: the (run, epoch) that a statement named no longer owns the
	// machine. Not retryable.
	ErrFenced = errors.New("fenced: another run owns the machine")
	// ErrClaimed: the agent of a boot that was given up has redeemed its claim, or its installer has
	// read its payload.
	ErrClaimed = errors.New("the agent has come after all")
	// Errors of BMCs: a run waits for an unreachable BMC, asks an operator after
	// refused credentials, and stops when an operation is unsupported.
	ErrUnreachable = errors.New("unreachable")
	ErrRefused     = errors.New("credentials refused")
	ErrUnsupported = errors.New("unsupported")
	// ErrFull: the disk has no room for a write, which changed nothing and may be
	// tried again.
	ErrFull = errors.New("the disk is full")
	// ErrSealed: a secret cannot be opened because its key is missing or wrong.
	ErrSealed = errors.New("secret key is missing or wrong")
	// ErrSecondServer: another server works for this site. It ends the process, because this server must not answer
	// machines either.
	ErrSecondServer = errors.New("a second server")
)

// TextOf returns what err says, without an ErrInvalid or ErrConflict at its end: those words are for programs, which read them
// as a code.
func TextOf(err error) string {
	text := strings.TrimSuffix(err.Error(), ": "+ErrInvalid.Error())
	return strings.TrimSuffix(text, ": "+ErrConflict.Error())
}

// Secret is text, or bytes in the form of a string, that must not be seen: it
// redacts itself in String, JSON and slog. Reveal is the only way out.
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

// String returns the redacted form, as all of these do.
func (s Secret) String() string { return s.redact() }

// GoString returns the redacted form.
func (s Secret) GoString() string { return s.redact() }

// MarshalJSON returns the redacted form.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.redact()) }

// MarshalText returns the redacted form.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.redact()), nil }

// LogValue returns the redacted form.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.redact()) }

// UnmarshalBinary reads any bytes. A type with this method may hold bytes in a YAML file (!!binary).
func (s *Secret) UnmarshalBinary(b []byte) error {
	s.v = string(b)
	return nil
}

// UnmarshalJSON reads a secret that was entered: text, or {"base64": …} for bytes.
// The redacted form is refused, or saving what was shown would destroy what was stored.
func (s *Secret) UnmarshalJSON(b []byte) error {
	v, err := action.DecodeBytes(b)
	if err != nil {
		return err
	}
	if v == "[redacted]" {
		return fmt.Errorf("the redacted form of a secret was given: %w", ErrInvalid)
	}
	s.v = v
	return nil
}

// Problem is one thing wrong with an input.
type Problem = problem.Problem

// Problems are all problems of an input; as an error it is an ErrInvalid.
type Problems = problem.List

// Conflicts are problems of a valid input with what is stored or under way. As an
// error it is an ErrConflict; errors.As finds its Problems.
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
