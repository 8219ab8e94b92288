-- Runs that workers share: each stands in a queue, in its turn there, and may have something in common with others of which only so many
-- execute at a time. A run of before stands where it would if it had been left to workers when it began.
ALTER TABLE runs
    ADD COLUMN queue text COLLATE "C" NOT NULL DEFAULT 'default',
    ADD COLUMN turn text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN lane text COLLATE "C" NOT NULL DEFAULT '';
UPDATE runs SET turn = '10000 ' || lpad(created_us::text, 17, '0');

ALTER TABLE aside_heads ADD COLUMN queue text, ADD COLUMN turn text, ADD COLUMN lane text;

-- Runs that nobody owns, by status, queue and agent, in their turn. The name of an agent may be longer than an entry of an index.
CREATE INDEX runs_turn ON runs (status, queue, hashtextextended(agent, 0), turn, run_id) WHERE owner IS NULL;

-- Runs in line that have something in common with others.
CREATE INDEX runs_lane ON runs (lane, queue) WHERE owner IS NULL AND status = 'queued' AND lane <> '';

-- How many runs an agent has, so that the server walks that index in its order instead of sorting all that stand in line.
CREATE STATISTICS runs_agents ON (hashtextextended(agent, 0)) FROM runs;

-- What a process that may own runs says of itself.
ALTER TABLE owners ADD COLUMN about bytea NOT NULL DEFAULT '';

-- Limits that processes share: each a point in time that moves on with what is drawn from it.
CREATE TABLE meters (meter text COLLATE "C" PRIMARY KEY, stands_us bigint NOT NULL) WITH (fillfactor = 60);

-- Work that nobody is to go on with for now: a queue, or everything, and what whoever said so says of it.
CREATE TABLE holds (what text COLLATE "C" PRIMARY KEY, about bytea NOT NULL);
