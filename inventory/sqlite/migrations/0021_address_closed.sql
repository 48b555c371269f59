-- A run that has started a container gives no user data by the machine's address, except during actions that are to read it.
ALTER TABLE grant_ ADD COLUMN container INTEGER NOT NULL DEFAULT 0 CHECK (container IN (0, 1));
ALTER TABLE grant_ ADD COLUMN address_closed INTEGER NOT NULL DEFAULT 0 CHECK (address_closed IN (0, 1));
