-- GPUs of all models counted in units, thousandths of which are GFLOPS: records say how many their GPUs have, 0 where nobody knew, and
-- prices may be per unit-hour, beside those per GPU-hour for the same goods.
ALTER TABLE usage_record ADD COLUMN gflops BIGINT NOT NULL DEFAULT 0;

CREATE TABLE price_by_unit (
    meter TEXT NOT NULL,
    tier TEXT NOT NULL,
    pool TEXT NOT NULL,
    model TEXT NOT NULL,
    per TEXT NOT NULL,
    from_ms BIGINT NOT NULL,
    until_ms BIGINT,
    micro BIGINT NOT NULL,
    PRIMARY KEY (meter, tier, pool, model, per, from_ms)
);
INSERT INTO price_by_unit SELECT meter, tier, pool, model, 'gpu', from_ms, until_ms, micro FROM price;
DROP TABLE price;
ALTER TABLE price_by_unit RENAME TO price;
