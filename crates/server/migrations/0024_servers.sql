-- The servers that share the database, each with what it last said of itself. A server that ends takes its row away.
CREATE TABLE replica (
    -- As the holder of the leadership is named: one process.
    holder TEXT PRIMARY KEY,
    url TEXT NOT NULL,
    -- The release of Sluice.
    release TEXT NOT NULL,
    -- By the clock of the database, as is the next.
    started_ms BIGINT NOT NULL,
    seen_ms BIGINT NOT NULL,
    -- What it has read of what leaders write: see the table leader.
    revision BIGINT NOT NULL,
    settings_revision BIGINT NOT NULL
);

-- Since when the one that leads does so.
ALTER TABLE leader ADD COLUMN since_ms BIGINT NOT NULL DEFAULT 0;
