-- GPUs of all models counted in units, thousandths of which are GFLOPS: records say how many their GPUs have, 0 where nobody knew, and
-- prices may be per unit-hour.
ALTER TABLE usage_record ADD COLUMN gflops BIGINT NOT NULL DEFAULT 0;
ALTER TABLE price ADD COLUMN per TEXT NOT NULL DEFAULT 'gpu';
