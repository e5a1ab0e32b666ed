-- What became of one lease, and what it has used.
CREATE INDEX audit_by_subject ON audit (subject, sequence);
CREATE INDEX usage_record_by_lease ON usage_record (lease);
