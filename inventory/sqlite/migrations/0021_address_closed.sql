-- A run that has started a container gives no user data by the machine's address.
ALTER TABLE grant_ ADD COLUMN address_closed INTEGER NOT NULL DEFAULT 0 CHECK (address_closed IN (0, 1));
