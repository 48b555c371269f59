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
