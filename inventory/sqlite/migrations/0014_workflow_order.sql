-- The runs that install or wipe a machine make its state, the newest record first (states.go: isOrder).
CREATE INDEX workflow_order ON workflow (machine)
    WHERE json_extract(doc, '$.type') IN ('Provision', 'Reprovision', 'Decommission');
