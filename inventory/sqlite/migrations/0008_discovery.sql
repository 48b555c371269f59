-- What an unknown machine has reported of its hardware, and when; NULL and 0 = nothing.
ALTER TABLE seen ADD COLUMN facts TEXT; -- JSON
ALTER TABLE seen ADD COLUMN reported INTEGER NOT NULL DEFAULT 0;
