-- Who may write, in the one row that there is. Every write begins with a look at `fence`, which grows with every new leader:
-- what one wrote that is leader no more is refused.
CREATE TABLE leader (
    id BIGINT PRIMARY KEY,
    fence BIGINT NOT NULL,
    -- The process, and the URL at which others reach it.
    holder TEXT NOT NULL,
    url TEXT NOT NULL,
    -- By the clock of the database.
    until_ms BIGINT NOT NULL,
    -- Of the last change of a lease, and of anything else that servers keep in memory.
    revision BIGINT NOT NULL,
    settings_revision BIGINT NOT NULL,
    -- The public half of the key that grants are signed with: all replicas must have the same.
    grant_key TEXT NOT NULL
);
INSERT INTO leader (id, fence, holder, url, until_ms, revision, settings_revision, grant_key)
    VALUES (1, 0, '', '', 0, 0, 0, '');

-- Followers and watchers read on from the revision that they have seen.
ALTER TABLE lease ADD COLUMN revision BIGINT NOT NULL DEFAULT 0;
CREATE INDEX lease_by_revision ON lease (revision);

CREATE INDEX idempotency_by_time ON idempotency (at_ms);
CREATE INDEX token_by_node ON token (node);
