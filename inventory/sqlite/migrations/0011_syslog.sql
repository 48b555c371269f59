-- What machines have sent by syslog. The newest rows of each machine are kept.
CREATE TABLE syslog (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    machine  TEXT NOT NULL REFERENCES machine (name) ON DELETE CASCADE,
    at       INTEGER NOT NULL, -- received
    severity TEXT NOT NULL,
    program  TEXT NOT NULL,
    text     TEXT NOT NULL
) STRICT;
CREATE INDEX syslog_machine ON syslog (machine, seq);
CREATE INDEX syslog_at ON syslog (at);
