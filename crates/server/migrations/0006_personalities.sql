-- What a pool was declared as holds from a moment until the next declaration: what was used meanwhile is priced by it.
-- Append-only.
CREATE TABLE pool_declaration (
    name TEXT NOT NULL,
    from_ms BIGINT NOT NULL,
    declared TEXT NOT NULL,
    PRIMARY KEY (name, from_ms)
);
