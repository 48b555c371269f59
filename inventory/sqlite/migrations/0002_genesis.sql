-- What is done with many machines, or with this server itself.
CREATE TABLE operation (
    run     TEXT PRIMARY KEY,
    id      TEXT NOT NULL,    -- workflow id
    kind    TEXT NOT NULL,    -- Genesis, Migrate, Recover
    name    TEXT NOT NULL,
    final   INTEGER NOT NULL,
    started INTEGER NOT NULL,
    doc     TEXT NOT NULL     -- JSON
) STRICT;
CREATE INDEX operation_id ON operation (id, started);

-- What a decommissioning has left of a machine; no row: it is in service.
CREATE TABLE standing (
    machine TEXT PRIMARY KEY REFERENCES machine (name) ON DELETE CASCADE,
    state   TEXT NOT NULL, -- available, quarantined
    doc     TEXT NOT NULL  -- JSON
) STRICT;

-- The boot that a grant allows is another installer's, not the agent's.
ALTER TABLE grant_ ADD COLUMN installer INTEGER NOT NULL DEFAULT 0;
-- Until when its success allows the next boot, an installer's; 0 = it does not.
ALTER TABLE assignment ADD COLUMN next_until INTEGER NOT NULL DEFAULT 0;

-- What an operation has found out and a later one of its id needs again: the
-- kubeconfig of a cluster, for example.
CREATE TABLE fact (
    run    TEXT PRIMARY KEY, -- workflow id of the operation, '#', name of the fact
    sealed BLOB NOT NULL
) STRICT;

-- A lab file with the files that it names.
CREATE TABLE genesis (
    run    TEXT PRIMARY KEY, -- workflow id of its Genesis
    name   TEXT NOT NULL UNIQUE,
    doc    TEXT NOT NULL,    -- JSON: all but the files
    sealed BLOB NOT NULL     -- the files
) STRICT;

-- The wish to move this site to another host. What became of it stands in
-- site.json, which is read before this database is.
CREATE TABLE handover (
    id         TEXT PRIMARY KEY,
    target     TEXT NOT NULL,    -- name of the peer
    site_epoch INTEGER NOT NULL, -- that the target will own
    force      INTEGER NOT NULL, -- a person's word: although runs are open
    requested  INTEGER NOT NULL
) STRICT;

-- What somebody who is not in the room is told: written with the record that
-- it tells of, sent later.
CREATE TABLE notice (
    seq      INTEGER PRIMARY KEY,
    id       TEXT NOT NULL UNIQUE,
    state    TEXT NOT NULL,    -- open, sent, dropped
    at       INTEGER NOT NULL, -- written; when sent: delivered
    due      INTEGER NOT NULL, -- next attempt
    attempts INTEGER NOT NULL,
    error    TEXT NOT NULL,    -- of the last attempt
    doc      TEXT NOT NULL     -- JSON
) STRICT;
CREATE INDEX notice_open ON notice (due) WHERE state = 'open';
