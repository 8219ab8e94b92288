-- Tails, added to the schema of format 1 where they are not there yet: which file beside the database holds what an owner has recorded last.
-- 0 is none.

ALTER TABLE owners ADD COLUMN tail INTEGER NOT NULL DEFAULT 0;
