-- Runs that workers share, added to the schema of format 1 where it is not there yet, once and as a whole: each stands in a queue, in its
-- turn there, and may have something in common with others of which only so many execute at a time. A run of before stands where it would
-- if it had been left to workers when it began.

ALTER TABLE runs ADD COLUMN queue TEXT NOT NULL DEFAULT 'default';
ALTER TABLE runs ADD COLUMN turn TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN lane TEXT NOT NULL DEFAULT '';
UPDATE runs SET turn = printf('10000 %017d', created_us);

ALTER TABLE aside_heads ADD COLUMN queue;
ALTER TABLE aside_heads ADD COLUMN turn;
ALTER TABLE aside_heads ADD COLUMN lane;

-- Runs that nobody owns, by status, queue and agent, in their turn.
CREATE INDEX runs_turn ON runs (status, queue, agent, turn) WHERE owner IS NULL;

-- Runs in line that have something in common with others.
CREATE INDEX runs_lane ON runs (lane, queue) WHERE owner IS NULL AND status = 'queued' AND lane <> '';

-- What a process that may own runs says of itself.
ALTER TABLE owners ADD COLUMN about BLOB NOT NULL DEFAULT x'';

-- Limits that processes share: each a point in time that moves on with what is drawn from it.
CREATE TABLE meters (meter TEXT PRIMARY KEY, stands_us INTEGER NOT NULL) STRICT, WITHOUT ROWID;

-- Work that nobody is to go on with for now: a queue, or everything, and what whoever said so says of it.
CREATE TABLE holds (what TEXT PRIMARY KEY, about BLOB NOT NULL) STRICT, WITHOUT ROWID;
