-- A batch of appends as one statement, and so one transaction and one round trip: its arguments are columns of the heads, of their rows
-- and of the letters they take, as arrays. `nr` is the place of an append in the batch. Gives the places of those that went in.
-- `IS TRUE` keeps the planner from making joins of what are lookups: joined one by one, a batch would cost the square of its length.
WITH wanted AS (
    SELECT * FROM unnest(
        $1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[], $9::bytea[], $10::bigint[],
        $11::bigint[], $12::bigint[], $13::text[], $14::double precision[], $15::text[], $16::text[], $17::text[], $18::text[],
        $19::text[]
    ) WITH ORDINALITY AS w (
        run_id, at_epoch, at_seq, agent, status, owner, epoch, seq, digest, wake_us, created_us, updated_us, tags, usd, note, queue, turn,
        lane, tagged, nr
    )
), moved AS (
    -- The fence. Where somebody else is changing the line, this waits for the end of that and looks at the line anew.
    UPDATE runs SET
        agent = w.agent, status = w.status, owner = w.owner, epoch = w.epoch, seq = w.seq, digest = w.digest, wake_us = w.wake_us,
        created_us = w.created_us, updated_us = w.updated_us, tags = w.tags, usd = w.usd, note = w.note, queue = w.queue,
        turn = w.turn, lane = w.lane, tagged = w.tagged::text[]
    FROM wanted w WHERE runs.run_id = w.run_id AND runs.epoch = w.at_epoch AND runs.seq = w.at_seq
    RETURNING w.nr, w.run_id, w.owner IS NULL AS rests
), new_ids AS (
    INSERT INTO ids SELECT run_id FROM wanted WHERE at_epoch = 0 AND at_seq = 0 ON CONFLICT DO NOTHING RETURNING run_id
), created AS (
    INSERT INTO runs (
        run_id, agent, status, owner, epoch, seq, digest, wake_us, created_us, updated_us, tags, usd, note, queue, turn, lane, tagged
    )
    SELECT run_id, agent, status, owner, epoch, seq, digest, wake_us, created_us, updated_us, tags, usd, note, queue, turn, lane,
        tagged::text[]
    FROM wanted WHERE at_epoch = 0 AND at_seq = 0 AND (run_id IN (SELECT run_id FROM new_ids)) IS TRUE
), went_in AS (
    SELECT nr, run_id, rests FROM moved
    UNION ALL
    SELECT nr, run_id, owner IS NULL FROM wanted WHERE at_epoch = 0 AND at_seq = 0 AND (run_id IN (SELECT run_id FROM new_ids)) IS TRUE
), added AS (
    INSERT INTO journal
    SELECT run_id, seq, epoch, at_us, kind, step_id, body, value, args, digest
    FROM unnest(
        $20::bigint[], $21::text[], $22::bigint[], $23::bigint[], $24::bigint[], $25::text[], $26::text[], $27::bytea[], $28::bytea[],
        $29::bytea[], $30::bytea[]
    ) AS r (nr, run_id, seq, epoch, at_us, kind, step_id, body, value, args, digest) WHERE (nr IN (SELECT nr FROM went_in)) IS TRUE
), taken AS (
    DELETE FROM letters USING unnest($31::bigint[], $32::text[], $33::bigint[]) AS t (nr, run_id, letter_id)
    WHERE letters.letter_id = t.letter_id AND letters.run_id = t.run_id AND (t.nr IN (SELECT nr FROM went_in)) IS TRUE
)
-- Whoever waits for a run that nobody owns any more is told, once this is committed.
SELECT
    nr, CASE WHEN rests THEN pg_notify('holdfast_' || md5(current_schema()), CASE WHEN octet_length(run_id) < 4000 THEN run_id ELSE '' END) END
FROM went_in
