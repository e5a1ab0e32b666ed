-- What a tenant has, without a look at what others have. With many records this may take longer than statements usually may.
SET LOCAL statement_timeout = 0;
CREATE INDEX lease_by_tenant ON lease (tenant, id);
CREATE INDEX usage_record_by_tenant ON usage_record (tenant, from_ms, id);
CREATE INDEX token_by_tenant ON token (tenant, id);
