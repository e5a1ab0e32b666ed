-- The addresses to which events are sent. A webhook without a text in "disabled" is enabled.
CREATE TABLE webhook (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    url TEXT NOT NULL,
    format TEXT NOT NULL,
    events TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    failing_since_ms BIGINT,
    disabled TEXT NOT NULL DEFAULT '',
    discarded BIGINT NOT NULL DEFAULT 0
);

-- Events are written here in the transaction of the change that they are about, and sent from here.
CREATE TABLE webhook_delivery (
    webhook TEXT NOT NULL,
    event TEXT NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    state TEXT NOT NULL,
    attempts BIGINT NOT NULL DEFAULT 0,
    next_at_ms BIGINT NOT NULL,
    last_at_ms BIGINT,
    status BIGINT,
    error TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (webhook, event)
);
CREATE INDEX webhook_delivery_due ON webhook_delivery (state, next_at_ms);
CREATE INDEX webhook_delivery_by_time ON webhook_delivery (webhook, created_at_ms);
CREATE INDEX webhook_delivery_of_state ON webhook_delivery (webhook, state, next_at_ms);
