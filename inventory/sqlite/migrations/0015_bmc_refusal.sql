-- The log-ins that a BMC has refused since it accepted one.
CREATE TABLE bmc_refusal (
    address     TEXT PRIMARY KEY, -- address and port
    count       INTEGER NOT NULL,
    last        INTEGER NOT NULL, -- when the last one was refused
    credentials TEXT NOT NULL     -- keyed digests of the last ones, with a space between them
) STRICT;
