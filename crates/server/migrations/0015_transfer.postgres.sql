-- Bytes that were moved to and from nodes, which a price may be of. What is there may take longer than statements usually may.
SET LOCAL statement_timeout = 0;
-- From here on nobody adds records before all that are there have been counted, and then with the new function.
LOCK TABLE usage_record IN SHARE ROW EXCLUSIVE MODE;
ALTER TABLE usage_hour ADD COLUMN transfer_bytes BIGINT NOT NULL DEFAULT 0;

CREATE OR REPLACE FUNCTION count_usage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO usage_hour AS known
        SELECT from_ms / 3600000, tenant, tier, pool, model, gflops, COUNT(*), SUM(reserved_ppm_ms), SUM(used_ppm_ms), SUM(memory_mib_ms),
            SUM(bytes_in + bytes_out)
        FROM added GROUP BY from_ms / 3600000, tenant, tier, pool, model, gflops
    ON CONFLICT (hour, tenant, tier, pool, model, gflops) DO UPDATE SET records = known.records + excluded.records,
        reserved_ppm_ms = known.reserved_ppm_ms + excluded.reserved_ppm_ms, used_ppm_ms = known.used_ppm_ms + excluded.used_ppm_ms,
        memory_mib_ms = known.memory_mib_ms + excluded.memory_mib_ms, transfer_bytes = known.transfer_bytes + excluded.transfer_bytes;
    RETURN NULL;
END $$;

-- No link moves, and no GPU begins, so much while a record is open (`BYTES_MAX` and `KERNELS_MAX` in crates/api/src/usage.rs): what a node
-- said beyond that, sums would not hold.
UPDATE usage_record SET bytes_in = LEAST(bytes_in, 70368744177664), bytes_out = LEAST(bytes_out, 70368744177664), kernels = LEAST(kernels, 70368744177664)
WHERE bytes_in > 70368744177664 OR bytes_out > 70368744177664 OR kernels > 70368744177664;
UPDATE usage_hour SET transfer_bytes = sums.bytes FROM (
    SELECT from_ms / 3600000 AS hour, tenant, tier, pool, model, gflops, SUM(bytes_in + bytes_out) AS bytes
    FROM usage_record GROUP BY from_ms / 3600000, tenant, tier, pool, model, gflops
) AS sums
WHERE usage_hour.hour = sums.hour AND usage_hour.tenant = sums.tenant AND usage_hour.tier = sums.tier
    AND usage_hour.pool = sums.pool AND usage_hour.model = sums.model AND usage_hour.gflops = sums.gflops;
