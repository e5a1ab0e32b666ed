-- The document that was made of a bill, and what became of it. Invoices of earlier releases are issued ones without a document.
ALTER TABLE invoice ADD COLUMN state TEXT NOT NULL DEFAULT 'issued';
ALTER TABLE invoice ADD COLUMN document TEXT NOT NULL DEFAULT '';
CREATE INDEX invoice_by_tenant ON invoice (tenant, number);

CREATE TABLE invoice_draft (
    number BIGINT PRIMARY KEY,
    tenant TEXT NOT NULL,
    document TEXT NOT NULL
);

-- Whom the invoices of a tenant are for, as JSON; empty where nothing is declared.
ALTER TABLE tenant ADD COLUMN bill_to TEXT NOT NULL DEFAULT '';

-- Who asked for a lease, as people know them.
ALTER TABLE lease ADD COLUMN person TEXT NOT NULL DEFAULT '';
