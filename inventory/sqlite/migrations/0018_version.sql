-- Raised by each change of the machine's document or of one of its secrets. A new machine begins above every version that
-- an earlier machine of the same name can have had: at the number of its first event.
ALTER TABLE machine ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
