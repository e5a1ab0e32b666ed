-- The GPUs that a record is of, as a JSON list of their names on their node; empty where that is not known.
ALTER TABLE usage_record ADD COLUMN devices TEXT NOT NULL DEFAULT '';

-- When a node was here first; of one that was known before this, when it joined last.
ALTER TABLE node ADD COLUMN first_joined_ms BIGINT NOT NULL DEFAULT 0;
UPDATE node SET first_joined_ms = joined_at_ms;

-- What the records of the same GPUs that begin in each hour since 1970 add up to. The database itself keeps it.
CREATE TABLE device_hour (
    node BIGINT NOT NULL,
    hour BIGINT NOT NULL,
    devices TEXT NOT NULL,
    tier TEXT NOT NULL,
    pool TEXT NOT NULL,
    model TEXT NOT NULL,
    gflops BIGINT NOT NULL,
    reserved_ppm_ms BIGINT NOT NULL,
    used_ppm_ms BIGINT NOT NULL,
    memory_mib_ms BIGINT NOT NULL,
    transfer_bytes BIGINT NOT NULL,
    suspended_ppm_ms BIGINT NOT NULL,
    PRIMARY KEY (node, hour, devices, tier, pool, model, gflops)
);

CREATE FUNCTION count_devices() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO device_hour AS known
        SELECT node, from_ms / 3600000, devices, tier, pool, model, gflops,
            LEAST(SUM(reserved_ppm_ms), 9223372036854775807), LEAST(SUM(used_ppm_ms), 9223372036854775807),
            LEAST(SUM(memory_mib_ms), 9223372036854775807), LEAST(SUM(bytes_in::NUMERIC + bytes_out), 9223372036854775807),
            LEAST(SUM(suspended_ppm_ms), 9223372036854775807)
        FROM added WHERE devices <> ''
        GROUP BY node, from_ms / 3600000, devices, tier, pool, model, gflops
    ON CONFLICT (node, hour, devices, tier, pool, model, gflops) DO UPDATE SET
        reserved_ppm_ms = LEAST(known.reserved_ppm_ms::NUMERIC + excluded.reserved_ppm_ms, 9223372036854775807),
        used_ppm_ms = LEAST(known.used_ppm_ms::NUMERIC + excluded.used_ppm_ms, 9223372036854775807),
        memory_mib_ms = LEAST(known.memory_mib_ms::NUMERIC + excluded.memory_mib_ms, 9223372036854775807),
        transfer_bytes = LEAST(known.transfer_bytes::NUMERIC + excluded.transfer_bytes, 9223372036854775807),
        suspended_ppm_ms = LEAST(known.suspended_ppm_ms::NUMERIC + excluded.suspended_ppm_ms, 9223372036854775807);
    RETURN NULL;
END $$;

CREATE TRIGGER usage_record_devices AFTER INSERT ON usage_record REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION count_devices();
