-- Quotas in units, and guaranteed memory.
ALTER TABLE tenant ADD COLUMN guaranteed_units_milli BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tenant ADD COLUMN guaranteed_memory_mib BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tenant ADD COLUMN units_limit_milli BIGINT;
