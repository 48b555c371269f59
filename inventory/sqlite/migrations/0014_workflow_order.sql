-- The runs that install or wipe a machine make its state (states.go: isOrder).
CREATE INDEX workflow_order ON workflow (machine, started)
    WHERE json_extract(doc, '$.type') IN ('Provision', 'Reprovision', 'Decommission');
