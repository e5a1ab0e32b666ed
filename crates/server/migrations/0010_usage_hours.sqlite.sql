-- What the records that begin in each hour since 1970 add up to, so that bills and budgets need not read all of them. The database itself
-- keeps it: whichever release writes a record, and however often one arrives.
CREATE TABLE usage_hour (
    hour BIGINT NOT NULL,
    tenant TEXT NOT NULL,
    tier TEXT NOT NULL,
    pool TEXT NOT NULL,
    model TEXT NOT NULL,
    gflops BIGINT NOT NULL,
    records BIGINT NOT NULL,
    reserved_ppm_ms BIGINT NOT NULL,
    used_ppm_ms BIGINT NOT NULL,
    memory_mib_ms BIGINT NOT NULL,
    PRIMARY KEY (hour, tenant, tier, pool, model, gflops)
);

CREATE TRIGGER usage_record_counts AFTER INSERT ON usage_record BEGIN
    INSERT INTO usage_hour VALUES (NEW.from_ms / 3600000, NEW.tenant, NEW.tier, NEW.pool, NEW.model, NEW.gflops, 1,
        NEW.reserved_ppm_ms, NEW.used_ppm_ms, NEW.memory_mib_ms)
    ON CONFLICT (hour, tenant, tier, pool, model, gflops) DO UPDATE SET records = records + 1,
        reserved_ppm_ms = reserved_ppm_ms + excluded.reserved_ppm_ms, used_ppm_ms = used_ppm_ms + excluded.used_ppm_ms,
        memory_mib_ms = memory_mib_ms + excluded.memory_mib_ms;
END;

INSERT INTO usage_hour
    SELECT from_ms / 3600000, tenant, tier, pool, model, gflops, COUNT(*), SUM(reserved_ppm_ms), SUM(used_ppm_ms), SUM(memory_mib_ms)
    FROM usage_record GROUP BY from_ms / 3600000, tenant, tier, pool, model, gflops;
