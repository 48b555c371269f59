-- The run's agent was given an action, and not yet the one that leaves it.
ALTER TABLE grant_ ADD COLUMN acting INTEGER NOT NULL DEFAULT 0;

-- The run, and the boot of its agent, that wrote a machine's disks last. It
-- outlives the run, its record and the machine's entry: the instance id of the
-- installed system is made of it. Boot 0: not recorded.
CREATE TABLE installation (
    machine TEXT PRIMARY KEY,
    run     TEXT NOT NULL,
    epoch   INTEGER NOT NULL,
    boot    INTEGER NOT NULL
) STRICT;
INSERT INTO installation (machine, run, epoch, boot)
SELECT d.machine, d.run, coalesce(json_extract(w.doc, '$.epoch'), 0), 0
FROM (SELECT machine, run, max(at) FROM disk_written GROUP BY machine) d JOIN workflow w ON w.run = d.run;
