-- What became of one lease, and what it has used. With many entries and records this may take longer than statements usually may.
SET LOCAL statement_timeout = 0;
CREATE INDEX audit_by_subject ON audit (subject, sequence);
CREATE INDEX usage_record_by_lease ON usage_record (lease);
