package sqlite

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Sessions are the sessions of operators that ended before they expired.
type Sessions struct{ *db }

// endedSession is the prefix of the names of rows in meta that record such sessions.
const endedSession = "ended_session."

// maxEndedSessions is the maximum number of these rows.
const maxEndedSessions = 1000

// EndSession records that the session with that id has ended. until is a time at which all sessions of now have expired; the row
// is removed after that. If there are already maxEndedSessions rows, one row with inventory.AllSessions replaces them and ends
// all sessions of now.
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

// EndedSessions returns the sessions that EndSession recorded: the time until, by id.
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
