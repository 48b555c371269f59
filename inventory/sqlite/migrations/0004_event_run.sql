-- A partial index serves no query whose parameter may be the value that it leaves
-- out: "run = ?" read all events. Events of no run are few.
DROP INDEX event_run;
CREATE INDEX event_run ON event (run, seq);

-- What is looked up by its run, and was read whole.
CREATE INDEX agent_run ON agent (run);
CREATE INDEX grant_run ON grant_ (run);

-- Open runs are few beside those that are over. They are counted for every status.
CREATE INDEX workflow_open ON workflow (started) WHERE final = 0;
CREATE INDEX workflow_open_machine ON workflow (machine, run) WHERE final = 0;
CREATE INDEX bmc_job_started ON bmc_job (started);
