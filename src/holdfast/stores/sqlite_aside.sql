-- What repairs have moved away, as it was found: no types and no keys, because damaged fields can hold anything.
-- A store has these tables from its first repair on.

CREATE TABLE IF NOT EXISTS aside_rows (
    moved_us, moved_by, why, run_id, seq, epoch, at_us, kind, step_id, body, value, args, digest, place, before
);

CREATE TABLE IF NOT EXISTS aside_heads (
    moved_us, moved_by, why,
    run_id, agent, status, owner, epoch, seq, digest, wake_us, created_us, updated_us, tags, usd, note, queue, turn, lane, last
);
