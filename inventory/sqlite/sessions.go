package sqlite

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// endedSession begins the names of the rows of meta that say which sessions of
// operators were ended before their time.
const endedSession = "ended_session."

// maxEndedSessions is how many such rows there are at most.
const maxEndedSessions = 1000

// EndSession records that the session with that id is over. until is when it,
// and every other session that exists now, will have expired; the row is
// removed after that. When there are maxEndedSessions rows already, one row
// with inventory.AllSessions replaces them: every session that exists is over.
func (s *Store) EndSession(ctx context.Context, id string, until time.Time) error {
	return s.write(ctx, "ending a session", func(tx *sqlx.Tx) error {
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

// EndedSessions returns what EndSession has recorded: until, by id.
func (s *Store) EndedSessions(ctx context.Context) (map[string]time.Time, error) {
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
