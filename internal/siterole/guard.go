package siterole

import (
	"context"
	"fmt"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// Guard returns nil when this server may answer machines: every peer has denied that it is the active server, or the operator has decided
// that this server is. If a peer is the active server, Guard retires this server and returns; the role is then Retired.
func (s *Source) Guard(ctx context.Context) error {
	for {
		x := s.File.Site()
		if x.Role != Active {
			return nil
		}
		doubt, done, err := s.askPeers(ctx, x)
		if err != nil || done {
			s.question.close()
			return err
		}

		d, err := s.ask(ctx, doubt.text, doubt.about...)
		switch {
		case err != nil:
			return err
		case d.decision == inventory.TakeOver:
			_, err := s.File.Change(func(x *Site) error {
				x.Peers, x.Why = nil, "taken over by an operator, who said that every peer is off"
				return nil
			})
			return err
		case d.decision == inventory.GiveUp:
			return s.retire(unknownHandOver, d.peer, "given up by an operator, who said that "+d.peer.Name+" runs the site")
		}
	}
}

// doubt says why this server may not answer machines (text), and which peers may be the active server (about).
type doubt struct {
	text  string
	about []inventory.Peer
}

// askPeers asks every peer for its role. done is true if no question is left: a peer has become the active server, so this server was
// retired, or all peers are standbys without a prepared site. Otherwise the doubt is the question for the operator.
func (s *Source) askPeers(ctx context.Context, x Site) (_ doubt, done bool, err error) {
	var prepared, silent doubt
	var reasons []string
	for _, p := range x.Peers {
		st, err := s.stateOf(ctx, p)
		switch {
		case ctx.Err() != nil:
			return doubt{}, false, ctx.Err()
		case err != nil:
			reasons = append(reasons, fmt.Sprintf("peer %s may run the site by now, but does not answer: %v", p.Name, err))
			silent.about = append(silent.about, p)
		case st.Role == Standby && st.Prepared == "":
		case st.Role == Standby:
			prepared = doubt{fmt.Sprintf("hand-over %s to %s is in progress, but this server has no record of that hand-over: "+
				"it may be a copy of the site", st.Prepared, p.Name), []inventory.Peer{p}}
		case st.Role == Retired && st.Successor != nil:
			why := fmt.Sprintf("%s ran the site, which has moved to %s", p.Name, st.Successor.Name)
			return doubt{}, true, s.retire(st.Activated, *st.Successor, why)
		default:
			why := fmt.Sprintf("%s runs the site, in site epoch %d", p.Name, st.Epoch)
			return doubt{}, true, s.retire(st.Activated, p, why)
		}
	}

	if prepared.text != "" {
		// An operator who takes over must know that the peers without an answer must be off, too: name them.
		prepared.text = strings.Join(append([]string{prepared.text}, reasons...), "; ")
		return prepared, false, nil
	}
	silent.text = strings.Join(reasons, "; ")
	return silent, len(reasons) == 0, nil
}

func (s *Source) stateOf(ctx context.Context, p inventory.Peer) (State, error) {
	api, err := s.Dial(p)
	if err != nil {
		return State{}, err
	}
	return api.State(ctx, "")
}
