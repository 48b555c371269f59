-- The BMC that has the medium: host and port, as in the inventory; '' = recorded before this migration.
ALTER TABLE bmc_media ADD COLUMN bmc TEXT NOT NULL DEFAULT '';
