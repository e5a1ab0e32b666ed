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

CREATE TRIGGER usage_record_devices AFTER INSERT ON usage_record WHEN NEW.devices <> '' BEGIN
    INSERT INTO device_hour VALUES (NEW.node, NEW.from_ms / 3600000, NEW.devices, NEW.tier, NEW.pool, NEW.model, NEW.gflops,
        NEW.reserved_ppm_ms, NEW.used_ppm_ms, NEW.memory_mib_ms, NEW.bytes_in + NEW.bytes_out, NEW.suspended_ppm_ms)
    ON CONFLICT (node, hour, devices, tier, pool, model, gflops) DO UPDATE SET
        reserved_ppm_ms = MIN(reserved_ppm_ms + excluded.reserved_ppm_ms, 9223372036854775807),
        used_ppm_ms = MIN(used_ppm_ms + excluded.used_ppm_ms, 9223372036854775807),
        memory_mib_ms = MIN(memory_mib_ms + excluded.memory_mib_ms, 9223372036854775807),
        transfer_bytes = MIN(transfer_bytes + excluded.transfer_bytes, 9223372036854775807),
        suspended_ppm_ms = MIN(suspended_ppm_ms + excluded.suspended_ppm_ms, 9223372036854775807);
END;
