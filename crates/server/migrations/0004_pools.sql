-- Pools, tiers, budgets, corrections, invoices. Prices may be for a tier, a pool or a model only: '' is any.

CREATE TABLE pool (
    name TEXT PRIMARY KEY,
    declared TEXT NOT NULL
);

ALTER TABLE tenant ADD COLUMN budget TEXT NOT NULL DEFAULT 'null';

ALTER TABLE usage_record ADD COLUMN tier TEXT NOT NULL DEFAULT 'standard';
ALTER TABLE usage_record ADD COLUMN pool TEXT NOT NULL DEFAULT '';
ALTER TABLE usage_record ADD COLUMN model TEXT NOT NULL DEFAULT '';

CREATE TABLE price_by_goods (
    meter TEXT NOT NULL,
    tier TEXT NOT NULL,
    pool TEXT NOT NULL,
    model TEXT NOT NULL,
    from_ms BIGINT NOT NULL,
    until_ms BIGINT,
    micro BIGINT NOT NULL,
    PRIMARY KEY (meter, tier, pool, model, from_ms)
);
INSERT INTO price_by_goods SELECT meter, '', '', '', from_ms, NULL, micro FROM price;
DROP TABLE price;
ALTER TABLE price_by_goods RENAME TO price;

-- Append-only.
CREATE TABLE correction (
    id BIGINT PRIMARY KEY,
    tenant TEXT NOT NULL,
    micro BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    reason TEXT NOT NULL,
    made_at_ms BIGINT NOT NULL,
    made_by TEXT NOT NULL
);

-- Append-only; the bill is as it was issued.
CREATE TABLE invoice (
    number BIGINT PRIMARY KEY,
    tenant TEXT NOT NULL,
    from_ms BIGINT NOT NULL,
    until_ms BIGINT NOT NULL,
    issued_at_ms BIGINT NOT NULL,
    bill TEXT NOT NULL
);
