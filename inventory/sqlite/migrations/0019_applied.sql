-- What "ingot apply" stored last. sealed: JSON, from each field of the document to the SHA-256 of its value.
CREATE TABLE applied (
    run      TEXT PRIMARY KEY, -- KIND/NAME of the object
    set_name TEXT NOT NULL,
    sealed   BLOB NOT NULL
) STRICT;

CREATE INDEX applied_set ON applied (set_name);
