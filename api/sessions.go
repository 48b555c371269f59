package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// SessionStore stores the sessions of browsers, and the links that can still open one.
type SessionStore interface {
	PutSession(ctx context.Context, s inventory.Session) error
	TokenOfSession(ctx context.Context, kind string, session inventory.TokenDigest) (inventory.TokenDigest, error)
	RedeemLink(ctx context.Context, kind string, code inventory.TokenDigest) (inventory.TokenDigest, error)
	EndSession(ctx context.Context, session inventory.TokenDigest) error
}

const (
	cookieName  = "ingot_session"
	linkLife    = 5 * time.Minute
	sessionLife = 24 * time.Hour
)

// sessions opens and ends the sessions of browsers. A session has the name and the role of the token with which it was
// opened, or with which its login link was made, and ends with that token.
type sessions struct {
	*access
	base   string        // beginning of login links
	silent func() string // see Upkeep
}

// answerReady answers like answerHealth, or with an error if a part of this server does not answer.
func (s *sessions) answerReady(c *gin.Context) {
	if s.silent != nil {
		if part := s.silent(); part != "" {
			httpapi.Fail(c, fmt.Errorf("%s: no answer: %w", part, inventory.ErrUnavailable))
			return
		}
	}
	answerHealth(c)
}

func answerHealth(c *gin.Context) { c.JSON(http.StatusOK, gin.H{"ok": true}) }

// openRoutes returns the routes that need no authentication: the health checks and the login.
func (s *sessions) openRoutes() []httpapi.Route {
	return []httpapi.Route{
		{Method: "GET", Path: "/healthz", Handler: answerHealth},
		{Method: "GET", Path: "/readyz", Handler: s.answerReady},
		{Method: "GET", Path: "/login/:code", Handler: s.openByLink},
		{Method: "POST", Path: "/login", Handler: s.openByToken},
	}
}

func (s *sessions) routes() []httpapi.Route {
	return []httpapi.Route{
		{
			Method: "POST", Path: "/v1/login-links", Needs: inventory.RoleOperate,
			Handler: httpapi.Handle(http.StatusCreated, httpapi.NoBody, s.createLink),
		},
		{Method: "POST", Path: "/v1/logout", Needs: inventory.RoleRead, Handler: s.logout},
	}
}

// open stores a new session or link of this kind, for the token with this digest. It returns the cookie or the link's code.
func (a *access) open(ctx context.Context, token inventory.TokenDigest, kind string, life time.Duration) (string, error) {
	text := randomText()
	err := a.sessions.PutSession(ctx, inventory.Session{
		Digest: sha256.Sum256([]byte(text)), Kind: kind, Token: token, Expires: a.now().Add(life),
	})
	return text, err
}

// randomText returns 256 random bits as text for URLs and headers.
func randomText() string {
	var b [32]byte
	rand.Read(b[:]) // never returns an error
	return base64.RawURLEncoding.EncodeToString(b[:])
}

type loginLink struct {
	URL     string    `json:"url"`
	Expires time.Time `json:"expires"`
}

func (s *sessions) createLink(ctx context.Context, _ httpapi.Empty) (loginLink, error) {
	code, err := s.open(ctx, callerOf(ctx).digest, inventory.SessionPageLink, linkLife)
	if err != nil {
		return loginLink{}, err
	}
	return loginLink{URL: strings.TrimSuffix(s.base, "/") + "/login/" + code, Expires: s.now().Add(linkLife).UTC()}, nil
}

func (s *sessions) openByLink(c *gin.Context) {
	token, err := s.sessions.RedeemLink(c.Request.Context(), inventory.SessionPageLink, sha256.Sum256([]byte(c.Param("code"))))
	if errors.Is(err, inventory.ErrNotFound) {
		showLogin(c, http.StatusNotFound, problemLink)
		return
	}
	if err != nil {
		httpapi.Fail(c, err)
		return
	}
	s.openPage(c, credential{digest: token}, http.StatusNotFound, problemLink)
}

// maxLoginForm limits the size of the form of the login page, in bytes.
const maxLoginForm = 4 << 10

// openByToken opens a session if the form of the login page contains a token that opens the page.
func (s *sessions) openByToken(c *gin.Context) {
	if checkOrigin(c); c.IsAborted() {
		return
	}
	c.Request.Body = http.MaxBytesReader(c.Writer, c.Request.Body, maxLoginForm)
	token := strings.TrimSpace(c.PostForm("token"))
	s.openPage(c, credential{digest: sha256.Sum256([]byte(token))}, http.StatusUnauthorized, problemToken)
}

// openPage opens a session for a token, sets the session cookie and redirects the browser to the web page. If the token
// does not open the page, the answer is the login page with this status and problem.
func (s *sessions) openPage(c *gin.Context, token credential, status int, problem string) {
	ctx := c.Request.Context()
	who, err := s.identify(ctx, token)
	if errors.Is(err, inventory.ErrNotFound) || err == nil && !who.Role.Allows(inventory.RoleRead) {
		s.log.Warn("refused a login", "from", c.ClientIP())
		showLogin(c, status, problem)
		return
	}
	var cookie string
	if err == nil {
		cookie, err = s.open(ctx, who.digest, inventory.SessionPage, sessionLife)
	}
	if err != nil {
		httpapi.Fail(c, err)
		return
	}
	s.log.Info("a session was opened", "by", who.Name, "from", c.ClientIP())
	http.SetCookie(c.Writer, s.cookie(cookie, int(sessionLife/time.Second)))
	c.Redirect(http.StatusSeeOther, "/")
}

func (s *sessions) logout(c *gin.Context) {
	for _, name := range []string{cookieName, uiCookie} { // a browser sends the cookies of all ports of a host
		http.SetCookie(c.Writer, newCookie(name, "", -1, strings.HasPrefix(s.base, "https:")))
		cookie, err := c.Cookie(name)
		if err != nil {
			continue
		}
		if err := s.sessions.EndSession(c.Request.Context(), sha256.Sum256([]byte(cookie))); err != nil {
			httpapi.Fail(c, err)
			return
		}
	}
	c.Status(http.StatusNoContent)
}

func (s *sessions) cookie(value string, maxAge int) *http.Cookie {
	return newCookie(cookieName, value, maxAge, strings.HasPrefix(s.base, "https:"))
}

// newCookie returns the cookie of a session. maxAge is in seconds; a negative one deletes the cookie.
func newCookie(name, value string, maxAge int, secure bool) *http.Cookie {
	return &http.Cookie{
		Name: name, Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: secure,
	}
}

//go:embed login.html
var loginPage string

// loginPolicy is the Content-Security-Policy of the login page. The page must not load anything. Its only style element
// is allowed, because the policy contains the digest of this element.
var loginPolicy = func() string {
	_, style, _ := strings.Cut(loginPage, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}()

// Problems that the login page can show.
const (
	problemLink  = "This link was already used, or is older than five minutes."
	problemToken = "This token is unknown, has expired, or does not open the page."
)

// showLogin sends the login page. problem is "", problemLink or problemToken.
func showLogin(c *gin.Context, status int, problem string) {
	c.Header("Content-Security-Policy", loginPolicy)
	// With "no-referrer", browsers would send the form with "Origin: null", and checkOrigin would refuse it.
	c.Header("Referrer-Policy", "same-origin")
	if problem != "" {
		problem = `<p class="failed" role="alert">` + problem + "</p>"
	}
	c.Data(status, "text/html; charset=utf-8", []byte(strings.Replace(loginPage, "<!--problem-->", problem, 1)))
}
