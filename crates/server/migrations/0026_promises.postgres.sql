-- What grants promise about waits for GPUs, and the waits. Nothing was promised before this.
ALTER TABLE usage_record ADD COLUMN wait_us BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage_record ADD COLUMN attained_ppm BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage_record ADD COLUMN credit_ppm BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage_record ADD COLUMN waits BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage_record ADD COLUMN waits_within BIGINT NOT NULL DEFAULT 0;

-- Promises and waits of each lease in each hour since 1970, of leases that were promised something.
-- The database itself keeps these sums.
CREATE TABLE promised_hour (
    hour BIGINT NOT NULL,
    lease BIGINT NOT NULL,
    tenant TEXT NOT NULL,
    tier TEXT NOT NULL,
    pool TEXT NOT NULL,
    model TEXT NOT NULL,
    gflops BIGINT NOT NULL,
    wait_us BIGINT NOT NULL,
    attained_ppm BIGINT NOT NULL,
    credit_ppm BIGINT NOT NULL,
    reserved_ppm_ms BIGINT NOT NULL,
    waits BIGINT NOT NULL,
    waits_within BIGINT NOT NULL,
    PRIMARY KEY (hour, lease, tenant, tier, pool, model, gflops, wait_us, attained_ppm, credit_ppm)
);
CREATE INDEX promised_hour_by_lease ON promised_hour (lease);

CREATE FUNCTION count_promises() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO promised_hour AS known
        SELECT from_ms / 3600000, lease, tenant, tier, pool, model, gflops, wait_us, attained_ppm, credit_ppm,
            LEAST(SUM(reserved_ppm_ms), 9223372036854775807), LEAST(SUM(waits), 9223372036854775807),
            LEAST(SUM(waits_within), 9223372036854775807)
        FROM added WHERE wait_us > 0
        GROUP BY from_ms / 3600000, lease, tenant, tier, pool, model, gflops, wait_us, attained_ppm, credit_ppm
    ON CONFLICT (hour, lease, tenant, tier, pool, model, gflops, wait_us, attained_ppm, credit_ppm) DO UPDATE SET
        reserved_ppm_ms = LEAST(known.reserved_ppm_ms::NUMERIC + excluded.reserved_ppm_ms, 9223372036854775807),
        waits = LEAST(known.waits::NUMERIC + excluded.waits, 9223372036854775807),
        waits_within = LEAST(known.waits_within::NUMERIC + excluded.waits_within, 9223372036854775807);
    RETURN NULL;
END $$;

CREATE TRIGGER usage_record_promises AFTER INSERT ON usage_record REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION count_promises();
