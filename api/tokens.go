package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"time"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// TokenStore stores the named tokens.
type TokenStore interface {
	Tokens(ctx context.Context) ([]inventory.Token, error)
	TokenOf(ctx context.Context, digest inventory.TokenDigest) (inventory.Token, error)
	AddToken(ctx context.Context, t inventory.Token, digest inventory.TokenDigest, replace bool) error
	RevokeToken(ctx context.Context, name string) error
	EnableToken(ctx context.Context, name string) error
}

type tokens struct {
	store TokenStore
	log   *slog.Logger
	now   func() time.Time
}

func (t *tokens) routes() []httpapi.Route {
	return []httpapi.Route{
		{Method: "GET", Path: "/v1/whoami", Needs: inventory.RoleAny, Handler: httpapi.Get(t.getCaller)},
		{Method: "GET", Path: "/v1/tokens", Needs: inventory.RoleAdmin, Handler: httpapi.Get(t.list)},
		{
			Method: "POST", Path: "/v1/tokens", Needs: inventory.RoleAdmin,
			Handler: httpapi.Handle(http.StatusCreated, httpapi.JSON, t.create),
		},
		{Method: "DELETE", Path: "/v1/tokens/:name", Needs: inventory.RoleAdmin, Handler: httpapi.Delete(t.revoke)},
		{
			Method: "POST", Path: "/v1/tokens/:name/enable", Needs: inventory.RoleAdmin,
			Handler: httpapi.Handle(http.StatusNoContent, httpapi.NoBody, t.enable),
		},
	}
}

// getCaller returns the token of the request.
func (t *tokens) getCaller(ctx context.Context, _ httpapi.Empty) (inventory.Token, error) {
	return callerOf(ctx).Token, nil
}

func (t *tokens) list(ctx context.Context, _ httpapi.Empty) (httpapi.List[inventory.Token], error) {
	all, err := t.store.Tokens(ctx)
	return httpapi.NewList(all), err
}

// maxTokenLife limits how long a token that expires can be valid.
const maxTokenLife = 10 * 365 * 24 * time.Hour

// create makes a new token. The answer is the only place where the token itself is shown.
func (t *tokens) create(ctx context.Context, q apitypes.TokenRequest) (apitypes.NewToken, error) {
	life, err := parseFor(q.For, 0, maxTokenLife)
	if err != nil {
		return apitypes.NewToken{}, err
	}
	now := t.now().UTC()
	added := inventory.Token{ID: rand.Text(), Name: q.Name, Role: q.Role, Created: now, By: httpapi.Actor(ctx)}
	if life > 0 {
		added.Expires = now.Add(life)
	}
	if err := added.Validate(); err != nil {
		return apitypes.NewToken{}, err
	}
	secret := "ingot_" + randomText()
	if err := t.store.AddToken(ctx, added, sha256.Sum256([]byte(secret)), q.Replace); err != nil {
		return apitypes.NewToken{}, err
	}
	t.log.Info("a token was created", "token", added.Name, "role", added.Role, "by", added.By)

	return apitypes.NewToken{Token: added, Secret: secret}, nil
}

// revoke ends a token with its sessions, login links and requests that are under way.
func (t *tokens) revoke(ctx context.Context, q byName) error {
	err := t.store.RevokeToken(ctx, q.Name)
	if err == nil {
		t.log.Warn("a token was revoked", "token", q.Name, "by", httpapi.Actor(ctx))
	}
	return err
}

// enable lets a token be used again that is off since a restore from a backup.
func (t *tokens) enable(ctx context.Context, q byName) (httpapi.Empty, error) {
	err := t.store.EnableToken(ctx, q.Name)
	if err == nil {
		t.log.Warn("a token was enabled", "token", q.Name, "by", httpapi.Actor(ctx))
	}
	return httpapi.Empty{}, err
}
