-- Time in which leases were suspended, which a price may be of. Nothing was before this.
ALTER TABLE usage_record ADD COLUMN suspended_ppm_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage_hour ADD COLUMN suspended_ppm_ms BIGINT NOT NULL DEFAULT 0;

CREATE OR REPLACE FUNCTION count_usage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO usage_hour AS known
        SELECT from_ms / 3600000, tenant, tier, pool, model, gflops, COUNT(*), LEAST(SUM(reserved_ppm_ms), 9223372036854775807),
            LEAST(SUM(used_ppm_ms), 9223372036854775807), LEAST(SUM(memory_mib_ms), 9223372036854775807),
            LEAST(SUM(bytes_in + bytes_out), 9223372036854775807), LEAST(SUM(suspended_ppm_ms), 9223372036854775807)
        FROM added GROUP BY from_ms / 3600000, tenant, tier, pool, model, gflops
    ON CONFLICT (hour, tenant, tier, pool, model, gflops) DO UPDATE SET records = known.records + excluded.records,
        reserved_ppm_ms = LEAST(known.reserved_ppm_ms::NUMERIC + excluded.reserved_ppm_ms, 9223372036854775807),
        used_ppm_ms = LEAST(known.used_ppm_ms::NUMERIC + excluded.used_ppm_ms, 9223372036854775807),
        memory_mib_ms = LEAST(known.memory_mib_ms::NUMERIC + excluded.memory_mib_ms, 9223372036854775807),
        transfer_bytes = LEAST(known.transfer_bytes::NUMERIC + excluded.transfer_bytes, 9223372036854775807),
        suspended_ppm_ms = LEAST(known.suspended_ppm_ms::NUMERIC + excluded.suspended_ppm_ms, 9223372036854775807);
    RETURN NULL;
END $$;
