-- Waiting notices get the names of Standard Webhooks.
UPDATE notice SET doc = json_remove(
    json_set(doc, '$.workflowType', doc ->> '$.type', '$.type', doc ->> '$.event', '$.timestamp', doc ->> '$.time'),
    '$.event', '$.time') WHERE doc ->> '$.event' IS NOT NULL;
