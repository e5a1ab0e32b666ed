-- The currency of all amounts, and who bills: one row or none.
CREATE TABLE seller (
    declared TEXT NOT NULL
);

-- How far off the estimates were of when leases start.
CREATE TABLE estimate_error (
    lease BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    tenant TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    error_ms BIGINT NOT NULL,
    PRIMARY KEY (lease, attempt)
);
CREATE INDEX estimate_error_at ON estimate_error (at_ms);
