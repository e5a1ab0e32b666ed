-- What a tenant has, without a look at what others have.
CREATE INDEX lease_by_tenant ON lease (tenant, id);
CREATE INDEX usage_record_by_tenant ON usage_record (tenant, from_ms, id);
CREATE INDEX token_by_tenant ON token (tenant, id);
