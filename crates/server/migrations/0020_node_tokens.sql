-- The name of the only node that may join with a token; empty for a token that is good for every node.
ALTER TABLE token ADD COLUMN node_name TEXT NOT NULL DEFAULT '';
CREATE INDEX token_by_node_name ON token (node_name);

-- Usage records that cannot be true as they are; they are on no bill until somebody accepts them.
CREATE TABLE usage_aside (
    id TEXT PRIMARY KEY,
    node BIGINT NOT NULL,
    record TEXT NOT NULL,
    reason TEXT NOT NULL,
    received_at_ms BIGINT NOT NULL
);
CREATE INDEX usage_aside_by_node ON usage_aside (node);
