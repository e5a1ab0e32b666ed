-- What tenants let the server change by itself; 0 for programs that are never suspended while they are idle.
CREATE TABLE consent (
    tenant TEXT PRIMARY KEY,
    mode TEXT NOT NULL,
    floor_percent BIGINT NOT NULL,
    idle_after_ms BIGINT NOT NULL,
    set_at_ms BIGINT NOT NULL,
    set_by TEXT NOT NULL
);

-- Programs that are left alone, since a person has undone what the server changed.
CREATE TABLE left_alone (
    tenant TEXT NOT NULL,
    program TEXT NOT NULL,
    set_at_ms BIGINT NOT NULL,
    set_by TEXT NOT NULL,
    PRIMARY KEY (tenant, program)
);

-- What the next runs of programs get if they state no size, as the server has found.
CREATE TABLE program_size (
    tenant TEXT NOT NULL,
    program TEXT NOT NULL,
    size TEXT NOT NULL,
    PRIMARY KEY (tenant, program)
);

-- What the server has changed about a lease by itself.
ALTER TABLE lease ADD COLUMN automatic TEXT NOT NULL DEFAULT 'null';
