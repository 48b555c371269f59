package sqlite

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Sessions are the sessions of operators that were ended before they expired, for example by logging out.
type Sessions struct{ *db }

// endedSession is the prefix of names in the table meta. A row with such a name records that a session was ended.
const endedSession = "ended_session."

// maxEndedSessions is the maximum number of rows that record ended sessions.
const maxEndedSessions = 1000

// EndSession records that the session called id has ended. until is a time by which every session that exists now will have expired; the
// record is deleted after that. If maxEndedSessions records exist already, EndSession replaces them by a single one for
// inventory.AllSessions, which ends every session that exists now.
func (s Sessions) EndSession(ctx context.Context, id string, until time.Time) error {
	return s.write(ctx, "ending a session", func(tx *transaction) error {
		const ended = "substr(name, 1, length(?)) = ?"
		err := do(ctx, tx, "DELETE FROM meta WHERE "+ended+" AND value <= ?", endedSession, endedSession, nanos(s.now()))
		if err != nil {
			return err
		}
		n, err := scalar[int](ctx, tx, "SELECT count(*) FROM meta WHERE "+ended, endedSession, endedSession)
		if err != nil {
			return err
		}

		if n >= maxEndedSessions {
			if err := do(ctx, tx, "DELETE FROM meta WHERE "+ended, endedSession, endedSession); err != nil {
				return err
			}
			id = inventory.AllSessions
		}
		return do(ctx, tx, "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", endedSession+id, nanos(until))
	})
}

// EndedSessions returns what EndSession has stored: by the id of each session, the time after which the record is deleted.
func (s Sessions) EndedSessions(ctx context.Context) (map[string]time.Time, error) {
	var rows []struct {
		Name  string
		Value int64
	}
	if err := s.ro.SelectContext(ctx, &rows, "SELECT name, value FROM meta WHERE substr(name, 1, length(?)) = ?",
		endedSession, endedSession); err != nil {
		return nil, fmt.Errorf("listing ended sessions: %w", err)
	}
	out := map[string]time.Time{}
	for _, r := range rows {
		out[strings.TrimPrefix(r.Name, endedSession)] = moment(r.Value)
	}
	return out, nil
}
