-- A node that is drained takes nothing new; one that is forgotten is in no list, and its number is not given to another.
ALTER TABLE node ADD COLUMN drain TEXT NOT NULL DEFAULT 'null';
ALTER TABLE node ADD COLUMN forgotten BIGINT NOT NULL DEFAULT 0;
