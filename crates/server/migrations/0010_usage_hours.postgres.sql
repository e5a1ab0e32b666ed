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

CREATE FUNCTION count_usage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO usage_hour AS known
        SELECT from_ms / 3600000, tenant, tier, pool, model, gflops, COUNT(*), SUM(reserved_ppm_ms), SUM(used_ppm_ms), SUM(memory_mib_ms)
        FROM added GROUP BY from_ms / 3600000, tenant, tier, pool, model, gflops
    ON CONFLICT (hour, tenant, tier, pool, model, gflops) DO UPDATE SET records = known.records + excluded.records,
        reserved_ppm_ms = known.reserved_ppm_ms + excluded.reserved_ppm_ms, used_ppm_ms = known.used_ppm_ms + excluded.used_ppm_ms,
        memory_mib_ms = known.memory_mib_ms + excluded.memory_mib_ms;
    RETURN NULL;
END $$;

-- From here on nobody adds records before all that are there have been counted.
CREATE TRIGGER usage_record_counts AFTER INSERT ON usage_record REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION count_usage();

-- All that there are may take longer than statements usually may.
SET LOCAL statement_timeout = 0;
INSERT INTO usage_hour
    SELECT from_ms / 3600000, tenant, tier, pool, model, gflops, COUNT(*), SUM(reserved_ppm_ms), SUM(used_ppm_ms), SUM(memory_mib_ms)
    FROM usage_record GROUP BY from_ms / 3600000, tenant, tier, pool, model, gflops;
