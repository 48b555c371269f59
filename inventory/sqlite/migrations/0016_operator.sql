-- The values "person:NAME" of runs, "waiting-for-person" of phases, steps and events, and "person" of evidence say operator.
UPDATE grant_ SET run = 'operator:' || substr(run, 8) WHERE run GLOB 'person:*';
UPDATE agent  SET run = 'operator:' || substr(run, 8) WHERE run GLOB 'person:*';
UPDATE event  SET run = 'operator:' || substr(run, 8) WHERE run GLOB 'person:*';
UPDATE workflow SET doc = json_set(doc, '$.phase', 'waiting-for-operator') WHERE json_extract(doc, '$.phase') = 'waiting-for-person';
UPDATE workflow SET doc = json_set(doc, '$.evidence', 'operator') WHERE json_extract(doc, '$.evidence') = 'person';
UPDATE operation SET doc = json_set(doc, '$.step', 'waiting-for-operator') WHERE json_extract(doc, '$.step') = 'waiting-for-person';
UPDATE notice SET doc = json_set(doc, '$.event', 'waiting-for-operator') WHERE json_extract(doc, '$.event') = 'waiting-for-person';
UPDATE event SET detail = json_set(detail, '$.phase', 'waiting-for-operator'),
    key = replace(key, 'waiting-for-person', 'waiting-for-operator'),
    message = replace(message, 'waiting-for-person', 'waiting-for-operator')
    WHERE kind = 'phase' AND json_extract(detail, '$.phase') = 'waiting-for-person';
UPDATE event SET detail = json_set(detail, '$.before', 'waiting-for-operator')
    WHERE kind = 'phase' AND json_extract(detail, '$.before') = 'waiting-for-person';
