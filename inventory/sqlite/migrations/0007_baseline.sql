-- The whole schema. The next change is a file 0008_*.sql beside this one.
--
-- Times are nanoseconds since 1970 in UTC; 0 = none. Columns called sealed,
-- user_data, vendor_data and bmc_password hold ciphertext only.

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

-- What a decommissioning has left of a machine. A machine without a row is in
-- service.
CREATE TABLE standing (
    machine TEXT PRIMARY KEY REFERENCES machine (name) ON DELETE CASCADE,
    state   TEXT NOT NULL, -- available, quarantined
    doc     TEXT NOT NULL  -- JSON
) STRICT;

-- Which run wrote each disk last, by the disk's identity. The rows go when the
-- machine's entry is deleted.
CREATE TABLE disk_written (
    machine  TEXT NOT NULL,
    identity TEXT NOT NULL, -- serial:X or wwn:Y
    run      TEXT NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (machine, identity)
) STRICT;

-- The run, and the boot of its agent, that was last assigned an action that
-- writes. The row outlives the run, its record and the machine's entry, because
-- the instance id of the installed system is made of it.
CREATE TABLE installation (
    machine TEXT PRIMARY KEY,
    run     TEXT NOT NULL,
    epoch   INTEGER NOT NULL,
    boot    INTEGER NOT NULL
) STRICT;

-- MACs of no machine that asked for an address.
CREATE TABLE seen (
    mac    TEXT PRIMARY KEY,
    first  INTEGER NOT NULL,
    last   INTEGER NOT NULL,
    count  INTEGER NOT NULL,
    giaddr TEXT NOT NULL,
    class  TEXT NOT NULL
) STRICT;
CREATE INDEX seen_last ON seen (last);

-- When each DHCP relay was last heard.
CREATE TABLE relay (
    giaddr TEXT PRIMARY KEY,
    heard  INTEGER NOT NULL
) STRICT;

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

-- Digests of images that were replaced or deleted. Their files are removed when
-- no image and no plan of an open run needs them. Other files in the image
-- directory are left alone.
CREATE TABLE image_unused (
    sha256 TEXT PRIMARY KEY
) STRICT;

-- Which run owns a machine. The row outlives run and machine, so that its epoch
-- only ever grows.
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
    taken         INTEGER NOT NULL,
    -- The boot that is allowed is another installer's, not the agent's.
    installer     INTEGER NOT NULL DEFAULT 0,
    -- The run's agent was assigned an action, and not yet the one that leaves it.
    acting        INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX grant_run ON grant_ (run);

CREATE TABLE agent (
    machine   TEXT NOT NULL,
    run       TEXT NOT NULL,
    epoch     INTEGER NOT NULL,
    boot      INTEGER NOT NULL,
    token     BLOB NOT NULL UNIQUE, -- its SHA-256
    nonce     TEXT NOT NULL,
    facts     TEXT NOT NULL, -- JSON
    hello     INTEGER NOT NULL,
    last_seen INTEGER NOT NULL,
    used      INTEGER NOT NULL DEFAULT 0,
    conflict  INTEGER NOT NULL DEFAULT 0,
    wrote     INTEGER NOT NULL DEFAULT 0,
    revoked   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (machine, run, epoch, boot)
) STRICT;
CREATE INDEX agent_run ON agent (run);

CREATE TABLE plan (
    run    TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    sealed BLOB NOT NULL
) STRICT;

CREATE TABLE assignment (
    machine    TEXT NOT NULL,
    run        TEXT NOT NULL,
    epoch      INTEGER NOT NULL,
    action     INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    boot       INTEGER NOT NULL,
    sealed     BLOB NOT NULL,
    state      TEXT NOT NULL,
    stop_at    INTEGER NOT NULL DEFAULT 0,
    delivered  INTEGER NOT NULL DEFAULT 0,
    result     TEXT, -- JSON without the log; NULL = none yet; the first one stays
    -- Until when its success allows the next boot, an installer's; 0 = it does not.
    next_until INTEGER NOT NULL DEFAULT 0,
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
-- Open runs are few beside those that are over, and are counted for every status.
CREATE INDEX workflow_open ON workflow (started) WHERE final = 0;
CREATE INDEX workflow_open_machine ON workflow (machine, run) WHERE final = 0;

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
    signalled INTEGER NOT NULL, -- 0 = the run has not been signalled yet
    UNIQUE (machine, run, epoch, boot, kind, key)
) STRICT;
-- Not partial (WHERE run <> ''): a partial index cannot serve "run = ?", because
-- the parameter may be ''.
CREATE INDEX event_run ON event (run, seq);
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
CREATE INDEX bmc_job_started ON bmc_job (started);

-- Workflows about many machines, or about this server itself.
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

-- What an operation has found out and a later operation of the same id needs,
-- for example the kubeconfig of a cluster.
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

-- Requests to move this site to another host. Their outcome is in site.json,
-- which is read before this database is.
CREATE TABLE handover (
    id         TEXT PRIMARY KEY,
    target     TEXT NOT NULL,    -- name of the peer
    site_epoch INTEGER NOT NULL, -- that the target will own
    force      INTEGER NOT NULL, -- an operator wants it although runs are open
    requested  INTEGER NOT NULL
) STRICT;

-- Notices for the webhook: each is written with the record that it is about, and
-- sent later.
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
