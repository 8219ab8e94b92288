-- The same for what is most frequent, one row of one run that goes on and no letters: without arrays it takes the server half the time.
-- Adds one row if it went in, and none otherwise.
WITH moved AS (
    UPDATE runs SET
        agent = $4, status = $5, owner = $6, epoch = $7, seq = $8, digest = $9, wake_us = $10, created_us = $11, updated_us = $12,
        tags = $13, usd = $14, note = $15, queue = $16, turn = $17, lane = $18, tagged = $19::text::text[]
    WHERE run_id = $1 AND epoch = $2 AND seq = $3
    RETURNING run_id
)
INSERT INTO journal SELECT run_id, $20, $21, $22, $23, $24, $25, $26, $27, $28 FROM moved
