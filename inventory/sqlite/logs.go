package sqlite

import (
	"context"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// maxLog is the number of bytes that are kept of each attempt's log. If the log is longer, its beginning is removed.
const maxLog = 64 << 10

// AppendLog adds text to the log of an attempt. It keeps only the last maxLog bytes of the log.
func (s Agents) AppendLog(ctx context.Context, o inventory.Owner, k action.Key, text string) error {
	if text == "" {
		return nil
	}
	what := nameAttempt("appending to the log of", o, k)
	return s.write(ctx, what, func(tx *transaction) error {
		if k.Epoch != o.Epoch {
			return inventory.ErrFenced
		}
		_, err := scalar[int](ctx, tx, "SELECT 1 FROM assignment WHERE "+keyed+" AND "+held, o.Machine, o.Run, o.Epoch,
			k.Action, k.Attempt)
		if errors.Is(err, inventory.ErrNotFound) {
			return fencedOr(ctx, tx, o, err)
		}
		if err != nil {
			return err
		}
		have, err := logOf(ctx, tx, o.Run, k)
		if err != nil {
			return err
		}
		return putLog(ctx, tx, o.Run, k, have+text)
	})
}

func logOf(ctx context.Context, tx *transaction, run string, k action.Key) (string, error) {
	return optional(scalar[string](ctx, tx,
		"SELECT text FROM log WHERE run = ? AND epoch = ? AND action = ? AND attempt = ?", run, k.Epoch, k.Action, k.Attempt))
}

func putLog(ctx context.Context, tx *transaction, run string, k action.Key, text string) error {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "")
	if over := len(text) - maxLog; over > 0 {
		for over < len(text) && !utf8.RuneStart(text[over]) {
			over++
		}
		text = text[over:]
	}

	return do(ctx, tx, "INSERT OR REPLACE INTO log (run, epoch, action, attempt, text) VALUES (?,?,?,?,?)", run,
		k.Epoch, k.Action, k.Attempt, text)
}

// mergeLog adds tail to the stored log of an attempt. tail is the end of the log, which the attempt's result contains. Heartbeats may have
// added a part of tail already: mergeLog does not add this part again.
func mergeLog(ctx context.Context, tx *transaction, run string, k action.Key, tail string) error {
	if tail == "" {
		return nil
	}
	have, err := logOf(ctx, tx, run, k)
	if err != nil {
		return err
	}
	return putLog(ctx, tx, run, k, have+tail[overlap(have, tail):])
}

// overlap compares the stored log, have, with tail. It returns how many bytes at the beginning of tail are also the end of the stored log.
// If the stored log contains all of tail, anywhere, the result is the length of tail.
func overlap(have, tail string) int {
	if strings.Contains(have, tail) {
		return len(tail)
	}
	for from := 0; ; from++ {
		// The common part begins with the first byte of tail: look for this byte in have.
		i := strings.IndexByte(have[from:], tail[0])
		if i < 0 {
			return 0
		}
		from += i
		if rest := have[from:]; strings.HasPrefix(tail, rest) {
			return len(rest)
		}
	}
}

// Log returns the log of an attempt at an action of a run. For attempt 0, it returns the log of the newest attempt. If there is no log, the
// error is inventory.ErrNotFound.
func (s Workflows) Log(ctx context.Context, run string, actionIndex, attempt int) (string, error) {
	text, err := scalar[string](ctx, s.ro, `SELECT text FROM log
		WHERE run = ?1 AND action = ?2 AND (?3 = 0 OR attempt = ?3) ORDER BY epoch DESC, attempt DESC LIMIT 1`,
		run, actionIndex, attempt)
	return text, wrap(err, "reading the log of action %d of run %q", actionIndex, run)
}
