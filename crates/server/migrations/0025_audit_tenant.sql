-- Whose business an entry is, beside what its hash covers; NULL where it concerns the whole installation.
ALTER TABLE audit ADD COLUMN tenant TEXT;
