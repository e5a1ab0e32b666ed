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

CREATE TRIGGER usage_record_promises AFTER INSERT ON usage_record WHEN NEW.wait_us > 0 BEGIN
    INSERT INTO promised_hour VALUES (NEW.from_ms / 3600000, NEW.lease, NEW.tenant, NEW.tier, NEW.pool, NEW.model, NEW.gflops,
        NEW.wait_us, NEW.attained_ppm, NEW.credit_ppm, NEW.reserved_ppm_ms, NEW.waits, NEW.waits_within)
    ON CONFLICT (hour, lease, tenant, tier, pool, model, gflops, wait_us, attained_ppm, credit_ppm) DO UPDATE SET
        reserved_ppm_ms = MIN(reserved_ppm_ms + excluded.reserved_ppm_ms, 9223372036854775807),
        waits = MIN(waits + excluded.waits, 9223372036854775807),
        waits_within = MIN(waits_within + excluded.waits_within, 9223372036854775807);
END;
