-- What the next runs of a program get of a GPU if they do not say; set by a person, from a recommendation.
CREATE TABLE run_default (
    tenant TEXT NOT NULL,
    program TEXT NOT NULL,
    share_ppm BIGINT NOT NULL,
    memory BIGINT NOT NULL,
    set_at_ms BIGINT NOT NULL,
    set_by TEXT NOT NULL,
    PRIMARY KEY (tenant, program)
);
