package agentapi

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
)

// deriveToken returns the bearer token of the agent that has redeemed, with nonce, the claim of a boot. The same
// arguments give the same token. Therefore a lost answer can be repeated, although only the hash of the token is
// stored.
func deriveToken(claimKey []byte, o inventory.Owner, boot int, nonce string) string {
	m := hmac.New(sha256.New, claimKey)
	fmt.Fprintf(m, "token\x00%s\x00%s\x00%d\x00%d\x00%s", o.Machine, o.Run, o.Epoch, boot, nonce)

	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// claim redeems the claim of a boot and returns the token of the agent. A wrong claim, a claim that has expired and a
// claim for an unknown machine get the same answer after the same work (security S3).
func (s *server) claim(ctx context.Context, h action.Hello) (action.Welcome, error) {
	if b, err := hex.DecodeString(h.Nonce); err != nil || len(b) < 16 || len(b) > 64 {
		return action.Welcome{}, inventory.Invalid("nonce", "", "must be 128 to 512 bits in hex")
	}
	g, err := s.Stores.Grants.Grant(ctx, h.Machine)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return action.Welcome{}, err
	}
	valid := inventory.Equal(inventory.Claim(s.ClaimKey, g.Owner, g.Boot), h.Claim)
	if !valid || g.Run == "" || g.Boot == 0 {
		return action.Welcome{}, httpapi.NotFound()
	}
	if err := checkProtocol(h.Protocol); err != nil {
		if s.logged.first(g, "protocol") {
			s.Log.With(g.LogKeys(g.Boot)...).Warn("refused an agent: its protocol version differs from the server's", "protocol", h.Protocol)
		}
		return action.Welcome{}, err
	}
	if err := s.checkHardware(ctx, g, h); err != nil {
		return action.Welcome{}, err
	}

	return s.redeem(ctx, g, h)
}

// redeem stores that the agent has redeemed the claim, and returns its token. If another agent has redeemed the claim,
// the answer is 409.
func (s *server) redeem(ctx context.Context, g inventory.Grant, h action.Hello) (action.Welcome, error) {
	now := s.Now()
	tokenFor := func(nonce string) string { return deriveToken(s.ClaimKey, g.Owner, g.Boot, nonce) }
	a, err := s.Stores.Agents.Redeem(ctx, inventory.Redemption{
		Owner: g.Owner, Boot: g.Boot, Hello: h, TokenFor: tokenFor, SecretsUntil: now.Add(s.SecretsFor),
	})
	switch {
	case errors.Is(err, inventory.ErrNotFound), errors.Is(err, inventory.ErrFenced):
		return action.Welcome{}, httpapi.NotFound()
	case errors.Is(err, inventory.ErrConflict):
		if s.logged.first(g, "second agent") {
			s.Log.With(g.LogKeys(g.Boot)...).Warn("refused a second agent that claimed the same boot")
		}
		return action.Welcome{}, refuseClaim("another agent has already claimed this boot")
	case err != nil:
		return action.Welcome{}, err
	}

	s.Agents.Saw(a, now)
	s.Log.With(a.LogKeys(a.Boot)...).Info("an agent has claimed its boot")
	return action.Welcome{
		Protocol: action.Protocol, Token: tokenFor(a.Nonce), Run: a.Run, Epoch: a.Epoch, Boot: a.Boot,
		Heartbeat: action.Seconds(max(s.Heartbeat/time.Second, 1)), Time: now.UTC(),
	}, nil
}

func refuseClaim(text string) error {
	return httpapi.Refuse(http.StatusConflict, "claim-conflict", text, "")
}

// checkProtocol returns an error if the agent's protocol version differs from the server's. The error states which side
// is older.
func checkProtocol(protocol int) error {
	switch {
	case protocol < action.Protocol:
		return inventory.Invalid("protocol",
			"copy the agent OS of the server's release into netboot.agent_os and boot the machine again",
			"the agent speaks protocol %d, but this server speaks protocol %d: the agent OS is too old", protocol, action.Protocol)
	case protocol > action.Protocol:
		return inventory.Invalid("protocol", "upgrade the server, or boot the agent OS of the server's release",
			"the agent speaks protocol %d, but this server speaks protocol %d: the agent OS is newer than the server",
			protocol, action.Protocol)
	}
	return nil
}

// checkHardware refuses an agent that cannot run on the machine of the grant: the agent reports MAC addresses, and
// none of them belongs to the machine in the inventory. The token of this boot is then revoked, and an event makes the
// run ask the operator.
func (s *server) checkHardware(ctx context.Context, g inventory.Grant, h action.Hello) error {
	m, err := s.Stores.Machines.Machine(ctx, g.Machine)
	if errors.Is(err, inventory.ErrNotFound) {
		return httpapi.NotFound()
	}
	if err != nil || isOf(m, h) {
		return err
	}

	if s.logged.first(g, "strange hardware") {
		s.Log.With(g.LogKeys(g.Boot)...).Warn("refused a claim: the hardware has none of the machine's MAC addresses",
			"mac", plaintext.Line(h.MAC, 32))
	}
	facts, err := json.Marshal(h.Facts)
	if err != nil {
		return fmt.Errorf("encoding the hardware facts of machine %q: %w", g.Machine, err)
	}
	const message = "the hardware has none of the machine's MAC addresses"
	if err := s.Stores.Agents.ClaimConflict(ctx, g.Owner, g.Boot, message, facts); err != nil {
		return err
	}

	return refuseClaim("this hardware has none of the machine's MAC addresses")
}

// isOf reports whether h may come from the machine m: h contains one of m's MAC addresses, or no MAC address at all.
func isOf(m inventory.Machine, h action.Hello) bool {
	macs := []string{h.MAC}
	for _, n := range h.Facts.NICs {
		macs = append(macs, n.MAC)
	}
	reported := false
	for _, mac := range macs {
		if mac == "" {
			continue
		}
		reported = true
		if k, err := inventory.ParseMAC(mac); err == nil {
			if _, ok := m.InterfaceByMAC(k); ok {
				return true
			}
		}
	}

	return !reported
}
