-- Bytes that were moved to and from nodes, which a price may be of.
ALTER TABLE usage_hour ADD COLUMN transfer_bytes BIGINT NOT NULL DEFAULT 0;

DROP TRIGGER usage_record_counts;
CREATE TRIGGER usage_record_counts AFTER INSERT ON usage_record BEGIN
    INSERT INTO usage_hour VALUES (NEW.from_ms / 3600000, NEW.tenant, NEW.tier, NEW.pool, NEW.model, NEW.gflops, 1,
        NEW.reserved_ppm_ms, NEW.used_ppm_ms, NEW.memory_mib_ms, NEW.bytes_in + NEW.bytes_out)
    ON CONFLICT (hour, tenant, tier, pool, model, gflops) DO UPDATE SET records = records + 1,
        reserved_ppm_ms = reserved_ppm_ms + excluded.reserved_ppm_ms, used_ppm_ms = used_ppm_ms + excluded.used_ppm_ms,
        memory_mib_ms = memory_mib_ms + excluded.memory_mib_ms, transfer_bytes = transfer_bytes + excluded.transfer_bytes;
END;

-- No link moves, and no GPU begins, so much while a record is open (`BYTES_MAX` and `KERNELS_MAX` in crates/api/src/usage.rs): what a node
-- said beyond that, sums would not hold.
UPDATE usage_record SET bytes_in = MIN(bytes_in, 70368744177664), bytes_out = MIN(bytes_out, 70368744177664), kernels = MIN(kernels, 70368744177664)
WHERE bytes_in > 70368744177664 OR bytes_out > 70368744177664 OR kernels > 70368744177664;
UPDATE usage_hour SET transfer_bytes = sums.bytes FROM (
    SELECT from_ms / 3600000 AS hour, tenant, tier, pool, model, gflops, SUM(bytes_in + bytes_out) AS bytes
    FROM usage_record GROUP BY from_ms / 3600000, tenant, tier, pool, model, gflops
) AS sums
WHERE usage_hour.hour = sums.hour AND usage_hour.tenant = sums.tenant AND usage_hour.tier = sums.tier
    AND usage_hour.pool = sums.pool AND usage_hour.model = sums.model AND usage_hour.gflops = sums.gflops;
