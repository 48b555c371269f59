-- The key of the TLS certificate that each BMC had at its first use, unless an authority had signed it.
CREATE TABLE bmc_key (
    address TEXT PRIMARY KEY, -- host and port, as in the inventory
    key     TEXT NOT NULL,    -- sha256: and the digest of the SubjectPublicKeyInfo
    first   INTEGER NOT NULL  -- when it was seen first
);

-- The media that runs have inserted into virtual CD drives, to be ejected when the run is over.
CREATE TABLE bmc_media (
    machine TEXT PRIMARY KEY REFERENCES machine (name) ON DELETE CASCADE,
    run     TEXT NOT NULL,
    url     TEXT NOT NULL
);
