-- Written for SQLite and PostgreSQL alike: numbers are BIGINT, truth values 0 or 1, lists and snapshots JSON in TEXT.

CREATE TABLE tenant (
    path TEXT PRIMARY KEY,
    guaranteed_milli BIGINT NOT NULL,
    limit_milli BIGINT,
    over_quota_weight BIGINT NOT NULL,
    memory_limit_mib BIGINT,
    leases_limit BIGINT
);

-- The hash covers the whole secret; the secret itself is nowhere.
CREATE TABLE token (
    id TEXT PRIMARY KEY,
    hash TEXT NOT NULL,
    tenant TEXT NOT NULL,
    role TEXT NOT NULL,
    name TEXT NOT NULL,
    node BIGINT,
    created_at_ms BIGINT NOT NULL,
    expires_at_ms BIGINT NOT NULL,
    revoked BIGINT NOT NULL
);

CREATE TABLE node (
    id BIGINT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    address TEXT NOT NULL,
    gpus TEXT NOT NULL,
    joined_at_ms BIGINT NOT NULL
);

CREATE TABLE lease (
    id BIGINT PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    gpus BIGINT NOT NULL,
    share_ppm BIGINT NOT NULL,
    memory BIGINT NOT NULL,
    hard_cap BIGINT NOT NULL,
    priority BIGINT NOT NULL,
    preemptible BIGINT NOT NULL,
    token TEXT NOT NULL,
    state TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    reason TEXT,
    node BIGINT,
    node_gpus TEXT NOT NULL,
    node_memory BIGINT NOT NULL,
    preempt_at_ms BIGINT,
    created_at_ms BIGINT NOT NULL,
    queued_at_ms BIGINT NOT NULL,
    granted_at_ms BIGINT,
    ended_at_ms BIGINT
);
CREATE INDEX lease_by_state ON lease (state, id);

-- Append-only. The sums that bills need are stored beside what they follow from.
CREATE TABLE usage_record (
    id TEXT PRIMARY KEY,
    node BIGINT NOT NULL,
    lease BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    tenant TEXT NOT NULL,
    from_ms BIGINT NOT NULL,
    until_ms BIGINT NOT NULL,
    share_ppm BIGINT NOT NULL,
    gpus BIGINT NOT NULL,
    memory_mib BIGINT NOT NULL,
    reserved_ppm_ms BIGINT NOT NULL,
    used_ppm_ms BIGINT NOT NULL,
    memory_mib_ms BIGINT NOT NULL,
    kernels BIGINT NOT NULL,
    bytes_in BIGINT NOT NULL,
    bytes_out BIGINT NOT NULL,
    memory_peak BIGINT NOT NULL,
    last BIGINT NOT NULL,
    received_at_ms BIGINT NOT NULL
);
CREATE INDEX usage_record_by_time ON usage_record (from_ms, id);

CREATE TABLE price (
    meter TEXT NOT NULL,
    from_ms BIGINT NOT NULL,
    micro BIGINT NOT NULL,
    PRIMARY KEY (meter, from_ms)
);

CREATE TABLE audit (
    sequence BIGINT PRIMARY KEY,
    at_ms BIGINT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL
);

CREATE TABLE idempotency (
    token TEXT NOT NULL,
    name TEXT NOT NULL,
    request TEXT NOT NULL,
    lease BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (token, name)
);
