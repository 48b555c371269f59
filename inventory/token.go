package inventory

import (
	"regexp"
	"slices"
	"strings"
	"time"
)

// A Role says which requests of the API a token may send.
type Role string

// The roles. An operator's role includes those before it; the others open the routes of one program each.
const (
	RoleRead    Role = "read"    // see machines, runs and their logs
	RoleOperate Role = "operate" // also install, change and delete machines, templates and images
	RoleAdmin   Role = "admin"   // also tokens, backups, keys, peers, migrations and Genesis
	RoleMetrics Role = "metrics" // GET /metrics only
	RoleCodec   Role = "codec"   // /codec only
	RoleBackup  Role = "backup"  // POST /v1/backup without the keys, and /v1/backups, only
)

// RoleAny is the need of routes that every token may use, whatever its role.
const RoleAny Role = "any"

// allowed lists, for each role, the values of needs that it fulfils.
var allowed = map[Role][]Role{
	RoleRead:    {RoleRead, RoleMetrics},
	RoleOperate: {RoleRead, RoleMetrics, RoleOperate, RoleCodec},
	RoleAdmin:   {RoleRead, RoleMetrics, RoleOperate, RoleCodec, RoleAdmin, RoleBackup},
	RoleMetrics: {RoleMetrics},
	RoleCodec:   {RoleCodec},
	RoleBackup:  {RoleBackup},
}

// Roles returns all roles.
func Roles() []string {
	return []string{
		string(RoleRead), string(RoleOperate), string(RoleAdmin), string(RoleMetrics), string(RoleCodec), string(RoleBackup),
	}
}

// Allows reports whether a caller with the role r may use a route. The argument needs is the role that the route requires.
func (r Role) Allows(needs Role) bool {
	return needs == RoleAny || slices.Contains(allowed[r], needs)
}

// AdminToken is the name of the token in the server's file token_file. It is not in the database.
const AdminToken = "admin"

// A Token is a named credential of an operator or a program. The token itself is shown once and not stored.
type Token struct {
	// ID is random. A token that gets the name of a revoked one has another ID.
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Role    Role      `json:"role"`
	Created time.Time `json:"created,omitzero"`
	By      string    `json:"by,omitempty"` // name of the token with which this one was created
	Expires time.Time `json:"expires,omitzero"`
	// Off means that the token is refused: the server was restored from a backup, after which the token may have been revoked.
	Off bool `json:"off,omitempty"`
}

// A TokenDigest is the SHA-256 of a token, of the cookie of a session or of the code of a login link.
type TokenDigest [32]byte

var tokenName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// reservedTokenNames are names that events and log lines use for others than a named token.
var reservedTokenNames = []string{AdminToken, "ingot", "restore"}

// Validate checks Name and Role.
func (t Token) Validate() error {
	var ps Problems
	switch {
	case !tokenName.MatchString(t.Name):
		ps.Add("name", "use lower-case letters, digits and -, at most 63", "invalid name of a token %q", t.Name)
	case slices.Contains(reservedTokenNames, t.Name):
		ps.Add("name", "choose another name", "the name %q is reserved", t.Name)
	}
	if _, ok := allowed[t.Role]; !ok {
		ps.Add("role", "", "invalid role %q; must be one of %s", t.Role, strings.Join(Roles(), ", "))
	}
	return ps.Err()
}

// The kinds of sessions, and of links that open one.
const (
	SessionPage     = "page"      // session of the page and the API
	SessionPageLink = "page-link" // login link
	SessionUI       = "ui"        // session of Temporal's UI
	SessionUILink   = "ui-link"   // link to Temporal's UI
)

// A Session is a session of a browser, or a link that can still open one.
type Session struct {
	Digest  TokenDigest // of the cookie or of the link's code
	Kind    string
	Token   TokenDigest // token with which the session or the link was opened; both end with the token
	Expires time.Time
}
