-- Times are nanoseconds since 1970 in UTC; 0 = none.
-- Columns called sealed, user_data, vendor_data and bmc_password hold
-- ciphertext only.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT;
INSERT INTO meta (name, value) VALUES ('site_epoch', 1);

CREATE TABLE machine (
    name         TEXT PRIMARY KEY,
    doc          TEXT NOT NULL, -- JSON without secrets
    bmc          TEXT UNIQUE,   -- host, port and system of the BMC; NULL = manual
    user_data    BLOB,
    vendor_data  BLOB,
    bmc_password BLOB,
    created      INTEGER NOT NULL,
    updated      INTEGER NOT NULL
) STRICT;

CREATE TABLE interface (
    mac     TEXT PRIMARY KEY,
    machine TEXT NOT NULL REFERENCES machine (name) ON DELETE CASCADE,
    address TEXT UNIQUE -- NULL = none reserved
) STRICT;
CREATE INDEX interface_machine ON interface (machine);

CREATE TABLE disk_written (
    machine  TEXT NOT NULL,
    identity TEXT NOT NULL, -- serial:X or wwn:Y
    run      TEXT NOT NULL, -- that wrote it last
    at       INTEGER NOT NULL,
    PRIMARY KEY (machine, identity)
) STRICT;

CREATE TABLE seen (
    mac    TEXT PRIMARY KEY,
    first  INTEGER NOT NULL,
    last   INTEGER NOT NULL,
    count  INTEGER NOT NULL,
    giaddr TEXT NOT NULL,
    class  TEXT NOT NULL
) STRICT;
CREATE INDEX seen_last ON seen (last);

CREATE TABLE template (
    name    TEXT PRIMARY KEY,
    source  TEXT NOT NULL,
    builtin INTEGER NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL
) STRICT;

CREATE TABLE image (
    name    TEXT PRIMARY KEY,
    doc     TEXT NOT NULL, -- JSON
    created INTEGER NOT NULL
) STRICT;

-- One row per machine that ever had an owner. It outlives run and machine, so
-- that its epoch only ever grows.
CREATE TABLE grant_ (
    machine       TEXT PRIMARY KEY,
    run           TEXT NOT NULL, -- '' = free
    epoch         INTEGER NOT NULL,
    site_epoch    INTEGER NOT NULL,
    workflow      TEXT NOT NULL,
    boot          INTEGER NOT NULL,
    boots_left    INTEGER NOT NULL,
    spent         INTEGER NOT NULL,
    netboot_until INTEGER NOT NULL,
    secrets_until INTEGER NOT NULL,
    taken         INTEGER NOT NULL
) STRICT;

CREATE TABLE agent (
    machine   TEXT NOT NULL,
    run       TEXT NOT NULL,
    epoch     INTEGER NOT NULL,
    boot      INTEGER NOT NULL,
    token     BLOB NOT NULL UNIQUE, -- SHA-256 of it
    nonce     TEXT NOT NULL,
    protocol  INTEGER NOT NULL,
    facts     TEXT NOT NULL, -- JSON
    hello     INTEGER NOT NULL,
    last_seen INTEGER NOT NULL,
    used      INTEGER NOT NULL DEFAULT 0,
    conflict  INTEGER NOT NULL DEFAULT 0,
    wrote     INTEGER NOT NULL DEFAULT 0,
    revoked   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (machine, run, epoch, boot)
) STRICT;

CREATE TABLE plan (
    run    TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    sealed BLOB NOT NULL
) STRICT;

CREATE TABLE assignment (
    machine   TEXT NOT NULL,
    run       TEXT NOT NULL,
    epoch     INTEGER NOT NULL,
    action    INTEGER NOT NULL,
    attempt   INTEGER NOT NULL,
    boot      INTEGER NOT NULL,
    sealed    BLOB NOT NULL,
    state     TEXT NOT NULL,
    stop_at   INTEGER NOT NULL DEFAULT 0,
    delivered INTEGER NOT NULL DEFAULT 0,
    result    TEXT, -- JSON without the log; NULL = none yet; the first wins
    PRIMARY KEY (machine, run, epoch, action, attempt)
) STRICT;
CREATE INDEX assignment_run ON assignment (run, epoch, action, attempt);

CREATE TABLE log (
    run     TEXT NOT NULL,
    epoch   INTEGER NOT NULL,
    action  INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    text    TEXT NOT NULL, -- tail
    PRIMARY KEY (run, epoch, action, attempt)
) STRICT;

CREATE TABLE workflow (
    run     TEXT PRIMARY KEY,
    machine TEXT NOT NULL,
    state   TEXT NOT NULL,
    final   INTEGER NOT NULL,
    started INTEGER NOT NULL,
    ended   INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    doc     TEXT NOT NULL -- JSON
) STRICT;
CREATE INDEX workflow_machine ON workflow (machine, started);
CREATE INDEX workflow_started ON workflow (started);

CREATE TABLE event (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    machine   TEXT NOT NULL,
    run       TEXT NOT NULL,
    epoch     INTEGER NOT NULL,
    boot      INTEGER NOT NULL,
    kind      TEXT NOT NULL,
    key       TEXT NOT NULL,
    at        INTEGER NOT NULL,
    count     INTEGER NOT NULL,
    message   TEXT NOT NULL,
    detail    TEXT, -- JSON
    by        TEXT NOT NULL,
    signalled INTEGER NOT NULL, -- 0 = the run has to hear of it yet
    UNIQUE (machine, run, epoch, boot, kind, key)
) STRICT;
CREATE INDEX event_run ON event (run, seq) WHERE run <> '';
CREATE INDEX event_machine ON event (machine, seq);
CREATE INDEX event_at ON event (at);
CREATE INDEX event_unsignalled ON event (seq) WHERE signalled = 0;

CREATE TABLE bmc_job (
    machine TEXT NOT NULL,
    name    TEXT NOT NULL,
    started INTEGER NOT NULL,
    doc     TEXT NOT NULL, -- JSON
    PRIMARY KEY (machine, name)
) STRICT;
