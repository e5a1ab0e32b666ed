-- Time in which leases were suspended, which a price may be of. Nothing was before this.
ALTER TABLE usage_record ADD COLUMN suspended_ppm_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage_hour ADD COLUMN suspended_ppm_ms BIGINT NOT NULL DEFAULT 0;

DROP TRIGGER usage_record_counts;
CREATE TRIGGER usage_record_counts AFTER INSERT ON usage_record BEGIN
    INSERT INTO usage_hour VALUES (NEW.from_ms / 3600000, NEW.tenant, NEW.tier, NEW.pool, NEW.model, NEW.gflops, 1,
        NEW.reserved_ppm_ms, NEW.used_ppm_ms, NEW.memory_mib_ms, NEW.bytes_in + NEW.bytes_out, NEW.suspended_ppm_ms)
    ON CONFLICT (hour, tenant, tier, pool, model, gflops) DO UPDATE SET records = records + 1,
        reserved_ppm_ms = MIN(reserved_ppm_ms + excluded.reserved_ppm_ms, 9223372036854775807),
        used_ppm_ms = MIN(used_ppm_ms + excluded.used_ppm_ms, 9223372036854775807),
        memory_mib_ms = MIN(memory_mib_ms + excluded.memory_mib_ms, 9223372036854775807),
        transfer_bytes = MIN(transfer_bytes + excluded.transfer_bytes, 9223372036854775807),
        suspended_ppm_ms = MIN(suspended_ppm_ms + excluded.suspended_ppm_ms, 9223372036854775807);
END;
