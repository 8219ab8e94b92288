-- What was added to the schema of format 1 after its first stores: each statement does nothing where it has been carried out before.

-- Runs that wait for a time, the earliest first: found however many others rest. No append of an owned run touches it.
CREATE INDEX IF NOT EXISTS runs_due ON runs (wake_us) WHERE owner IS NULL AND wake_us IS NOT NULL;
