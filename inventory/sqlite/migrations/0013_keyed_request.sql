-- Requests that were sent with an Idempotency-Key, for a day.
CREATE TABLE keyed_request (
    id          TEXT PRIMARY KEY,          -- digest of the sender and the key
    fingerprint TEXT NOT NULL,             -- keyed digest of method, path, query and body
    created     INTEGER NOT NULL,
    applied     TEXT NOT NULL DEFAULT '',  -- the change of the inventory that was committed with it; '' = none
    workflow    TEXT NOT NULL DEFAULT '',  -- id of the workflow that it starts; '' = none
    before      TEXT NOT NULL DEFAULT '',  -- newest run of that id before it; '' = none
    status      INTEGER NOT NULL DEFAULT 0, -- of the answer; 0 = none yet
    answer      TEXT                       -- its body; NULL = none yet, or too large
) STRICT;
CREATE INDEX keyed_request_created ON keyed_request (created);
