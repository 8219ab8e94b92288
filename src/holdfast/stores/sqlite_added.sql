-- What was added to the schema of format 1 after its first stores: each statement does nothing where it has been carried out before.

-- Runs that wait for a time, the earliest first: found however many others rest. No append of an owned run touches it.
CREATE INDEX IF NOT EXISTS runs_due ON runs (wake_us) WHERE owner IS NULL AND wake_us IS NOT NULL;

-- What stays of runs that were removed: their ids are not used again, because that would do everything once more.
CREATE TABLE IF NOT EXISTS pruned (
    run_id TEXT PRIMARY KEY,
    agent TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    status TEXT NOT NULL,
    ended_us INTEGER NOT NULL,
    pruned_us INTEGER NOT NULL,
    pruned_by TEXT NOT NULL,
    why TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What repairs have moved away, as it was found: no types and no keys, because damaged fields can hold anything.
CREATE TABLE IF NOT EXISTS aside_rows (
    moved_us, moved_by, why, run_id, seq, epoch, at_us, kind, step_id, body, value, args, digest, place, before
);

CREATE TABLE IF NOT EXISTS aside_heads (
    moved_us, moved_by, why,
    run_id, agent, status, owner, epoch, seq, digest, wake_us, created_us, updated_us, tags, usd, note, last
);
