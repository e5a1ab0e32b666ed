-- A lease has tasks, each with a seat; what was asked for is one JSON object.

ALTER TABLE lease ADD COLUMN ask TEXT NOT NULL DEFAULT '{}';
ALTER TABLE lease ADD COLUMN seats TEXT NOT NULL DEFAULT '[]';

-- Names hold no control characters.
UPDATE lease SET ask = '{"gpus":' || CAST(gpus AS TEXT) || ',"share_ppm":' || CAST(share_ppm AS TEXT)
    || ',"memory":' || CAST(memory AS TEXT) || ',"hard_cap":' || CASE hard_cap WHEN 0 THEN 'false' ELSE 'true' END
    || ',"priority":' || CAST(priority AS TEXT)
    || ',"preemptible":' || CASE preemptible WHEN 0 THEN 'false' ELSE 'true' END
    || ',"name":"' || REPLACE(REPLACE(name, '\', '\\'), '"', '\"') || '"}';
UPDATE lease SET seats = '[{"node":' || CAST(node AS TEXT) || ',"gpus":' || node_gpus
    || ',"memory":' || CAST(node_memory AS TEXT)
    || ',"claimed":' || CASE state WHEN 'granted' THEN 'false' ELSE 'true' END || '}]' WHERE node IS NOT NULL;

ALTER TABLE lease DROP COLUMN gpus;
ALTER TABLE lease DROP COLUMN share_ppm;
ALTER TABLE lease DROP COLUMN memory;
ALTER TABLE lease DROP COLUMN hard_cap;
ALTER TABLE lease DROP COLUMN priority;
ALTER TABLE lease DROP COLUMN preemptible;
ALTER TABLE lease DROP COLUMN node;
ALTER TABLE lease DROP COLUMN node_gpus;
ALTER TABLE lease DROP COLUMN node_memory;

ALTER TABLE node ADD COLUMN labels TEXT NOT NULL DEFAULT '{}';
ALTER TABLE usage_record ADD COLUMN task BIGINT NOT NULL DEFAULT 0;
