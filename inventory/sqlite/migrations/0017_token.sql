-- Named tokens of operators and programs. The token itself is not stored.
CREATE TABLE token (
    name      TEXT PRIMARY KEY,
    id        TEXT NOT NULL UNIQUE,
    digest    BLOB NOT NULL UNIQUE, -- SHA-256 of the token
    role      TEXT NOT NULL,
    created   INTEGER NOT NULL,
    author    TEXT NOT NULL,        -- name of the token that created this one
    expires   INTEGER NOT NULL,     -- 0 = never
    off       INTEGER NOT NULL DEFAULT 0, -- refused since a restore from a backup
    -- What else limits the token; no program reads this yet. '' and [] = nothing.
    scope     TEXT NOT NULL DEFAULT '',
    selector  TEXT NOT NULL DEFAULT '',
    templates TEXT NOT NULL DEFAULT '[]'  -- JSON
) STRICT;

-- Sessions of browsers, and login links that can still open one.
CREATE TABLE session (
    digest  BLOB PRIMARY KEY, -- SHA-256 of the cookie or of the link's code
    kind    TEXT NOT NULL,    -- page, page-link, ui, ui-link
    token   BLOB NOT NULL,    -- digest of the token with which it was opened
    expires INTEGER NOT NULL
) STRICT;

DELETE FROM meta WHERE substr(name, 1, 14) = 'ended_session.';
