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
