-- The schema of a PostgreSQL store. Columns stand in the order of the tuples in holdfast/store.py.
-- Text is compared byte by byte ("C"), so that ids are walked in the same order on every server.

-- What this schema is: the version of its format, how many of these files have been applied, and an id of its own.
CREATE TABLE meta (key text PRIMARY KEY, value text NOT NULL);

-- Every id that was ever used, those of removed runs too: what creates a run comes past here, whatever it has seen before.
CREATE TABLE ids (run_id text COLLATE "C" PRIMARY KEY);

-- Where each run stands: one line per run, moved in the same transaction as its journal. `tagged` is `tags` in a form that can be
-- searched. `rested_us` moves only while nobody owns the run, so that an append to an owned run changes no column that has an
-- index; the room left in each page lets PostgreSQL keep the new line beside the old one, and touch no index at all. `dropped` counts
-- the rows that pruning took from the journal, so that a row that is merely missing is noticed.
CREATE TABLE runs (
    run_id text COLLATE "C" PRIMARY KEY,
    agent text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    owner text COLLATE "C",
    epoch bigint NOT NULL,
    seq bigint NOT NULL,
    digest bytea NOT NULL,
    wake_us bigint,
    created_us bigint NOT NULL,
    updated_us bigint NOT NULL,
    tags text COLLATE "C" NOT NULL,
    usd double precision NOT NULL,
    note text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    turn text COLLATE "C" NOT NULL,
    lane text COLLATE "C" NOT NULL,
    tagged text[] COLLATE "C" NOT NULL,
    dropped bigint NOT NULL DEFAULT 0,
    rested_us bigint GENERATED ALWAYS AS (CASE WHEN owner IS NULL THEN updated_us END) STORED
) WITH (fillfactor = 60);

-- Runs that nobody owns, by status, newest change first.
CREATE INDEX runs_resting ON runs (status, rested_us DESC, run_id) WHERE owner IS NULL;

-- Runs that somebody owns: as small as what goes on now, so it is sorted when asked for.
CREATE INDEX runs_owned ON runs (owner) WHERE owner IS NOT NULL;

-- Runs that wait for a time, the earliest first.
CREATE INDEX runs_due ON runs (wake_us, run_id) WHERE owner IS NULL AND wake_us IS NOT NULL;

-- Runs that nobody owns, by status, queue and agent, in their turn.
CREATE INDEX runs_turn ON runs (status, queue, agent, turn, run_id) WHERE owner IS NULL;

-- The facts of all runs.
CREATE TABLE journal (
    run_id text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    epoch bigint NOT NULL,
    at_us bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    step_id text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    value bytea,
    args bytea,
    digest bytea NOT NULL,
    PRIMARY KEY (run_id, seq)
);

-- Words to runs that no append has taken yet. A number of a sequence is never given twice.
CREATE SEQUENCE letter_ids;
CREATE TABLE letters (
    letter_id bigint PRIMARY KEY,
    run_id text COLLATE "C" NOT NULL,
    at_us bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    body bytea NOT NULL
);
CREATE INDEX letters_run ON letters (run_id, letter_id);

-- The processes that may own runs, and how often each has renewed; when it did so last, by the clock of the database, is for people.
CREATE TABLE owners (
    owner text COLLATE "C" PRIMARY KEY,
    beat bigint NOT NULL,
    enrolled_at timestamptz NOT NULL DEFAULT now(),
    renewed_at timestamptz NOT NULL DEFAULT now(),
    about bytea NOT NULL DEFAULT ''
) WITH (fillfactor = 60);

-- Limits that processes share: each a point in time that moves on with what is drawn from it.
CREATE TABLE meters (meter text COLLATE "C" PRIMARY KEY, stands_us bigint NOT NULL) WITH (fillfactor = 60);

-- Work that nobody is to go on with for now: a queue, or everything, and what whoever said so says of it.
CREATE TABLE holds (what text COLLATE "C" PRIMARY KEY, about bytea NOT NULL);

-- What stays of runs that were removed.
CREATE TABLE pruned (
    run_id text COLLATE "C" PRIMARY KEY,
    agent text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    ended_us bigint NOT NULL,
    pruned_us bigint NOT NULL,
    pruned_by text COLLATE "C" NOT NULL,
    why text COLLATE "C" NOT NULL
);

-- What repairs have moved away, as it was found.
CREATE TABLE aside_rows (
    place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    moved_us bigint NOT NULL,
    moved_by text NOT NULL,
    why text NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    seq bigint, epoch bigint, at_us bigint, kind text, step_id text, body bytea, value bytea, args bytea, digest bytea
);
CREATE INDEX aside_rows_run ON aside_rows (run_id);

CREATE TABLE aside_heads (
    place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    moved_us bigint NOT NULL,
    moved_by text NOT NULL,
    why text NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    agent text, status text, owner text, epoch bigint, seq bigint, digest bytea, wake_us bigint, created_us bigint, updated_us bigint,
    tags text, usd double precision, note text, queue text, turn text, lane text
);
CREATE INDEX aside_heads_run ON aside_heads (run_id);

-- What runs say while they execute: in no log, so a crash of the server empties it. Its numbers come from a sequence that is in the log,
-- so that a position stays good.
CREATE SEQUENCE live_positions;
CREATE UNLOGGED TABLE live (
    position bigint PRIMARY KEY DEFAULT nextval('live_positions'),
    run_id text COLLATE "C" NOT NULL,
    said_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    payload bytea NOT NULL
);
CREATE INDEX live_run ON live (run_id, position);

-- Blobs: what each holds stands in pieces under a number of its own, because its digest is known only when all has been read.
CREATE SEQUENCE blob_numbers;
CREATE TABLE blobs (
    digest text COLLATE "C" PRIMARY KEY,
    number bigint NOT NULL UNIQUE,
    size bigint NOT NULL,
    kept_us bigint NOT NULL
);
CREATE TABLE blob_pieces (number bigint NOT NULL, place integer NOT NULL, data bytea NOT NULL, PRIMARY KEY (number, place));
ALTER TABLE blob_pieces ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE blob_parts (
    whole text COLLATE "C" NOT NULL REFERENCES blobs ON DELETE CASCADE,
    part text COLLATE "C" NOT NULL,
    PRIMARY KEY (whole, part)
);
CREATE TABLE blob_refs (run_id text COLLATE "C" NOT NULL, digest text COLLATE "C" NOT NULL, PRIMARY KEY (run_id, digest));
CREATE INDEX blob_refs_digest ON blob_refs (digest);
