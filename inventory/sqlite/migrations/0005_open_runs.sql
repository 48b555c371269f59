-- Runs that are not over are counted for every status.
CREATE INDEX workflow_open ON workflow (machine, run) WHERE final = 0;
