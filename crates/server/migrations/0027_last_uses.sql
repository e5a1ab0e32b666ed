-- When tokens were used last. Each server writes its own part once a minute, outside of the changes that the leader makes.
CREATE TABLE token_use (
    token TEXT PRIMARY KEY,
    last_at_ms BIGINT NOT NULL
);

-- People of an identity provider, who have no tokens of the server's own: as its rules described them when they were here last.
CREATE TABLE person (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    role TEXT NOT NULL,
    name TEXT NOT NULL,
    issuer TEXT NOT NULL,
    first_at_ms BIGINT NOT NULL,
    last_at_ms BIGINT NOT NULL
);
CREATE INDEX person_by_tenant ON person (tenant, id);
