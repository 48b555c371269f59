-- The password that a run is giving to a machine's BMC, sealed, and that run; NULL = none. It takes the place of bmc_password when
-- the BMC has accepted it.
ALTER TABLE machine ADD COLUMN bmc_candidate BLOB;
ALTER TABLE machine ADD COLUMN bmc_candidate_run TEXT;
