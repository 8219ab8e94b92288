-- The schema of a SQLite store. Columns stand in the order of the tuples in holdfast/store.py.

-- What this file is: the version of its format and an id of its own.
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

-- Where each run stands: one line per run, moved in the same transaction as its journal. `last` is the place of its last record.
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    agent TEXT NOT NULL,
    status TEXT NOT NULL,
    owner TEXT,
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    digest BLOB NOT NULL,
    wake_us INTEGER,
    created_us INTEGER NOT NULL,
    updated_us INTEGER NOT NULL,
    tags TEXT NOT NULL,
    usd REAL NOT NULL,
    note TEXT NOT NULL,
    queue TEXT NOT NULL,
    turn TEXT NOT NULL,
    lane TEXT NOT NULL,
    last INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Runs that nobody owns, newest change last: as large as the store, but no append of an owned run touches it.
CREATE INDEX runs_resting ON runs (status, updated_us) WHERE owner IS NULL;

-- Runs that somebody owns: as small as what goes on now, so it is sorted when asked for.
CREATE INDEX runs_owned ON runs (owner) WHERE owner IS NOT NULL;

-- Runs that nobody owns, by status, queue and agent, in their turn.
CREATE INDEX runs_turn ON runs (status, queue, agent, turn) WHERE owner IS NULL;

-- The facts of all runs, one behind the other as they came. A record knows the place of the one before it in its run (0: the first),
-- and the head that of the last: an append writes the end of this table and the head, and no index.
CREATE TABLE journal (
    run_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    at_us INTEGER NOT NULL,
    kind TEXT NOT NULL,
    step_id TEXT NOT NULL,
    body BLOB NOT NULL,
    value BLOB,
    args BLOB,
    digest BLOB NOT NULL,
    place INTEGER PRIMARY KEY,
    before INTEGER NOT NULL
) STRICT;

-- A run whose head is gone is damaged, and must not begin anew.
CREATE UNIQUE INDEX journal_begun ON journal (run_id) WHERE before = 0;

-- Words to runs that no append has taken yet. AUTOINCREMENT: a number is never given twice.
CREATE TABLE letters (
    letter_id INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL,
    at_us INTEGER NOT NULL,
    kind TEXT NOT NULL,
    body BLOB NOT NULL
) STRICT;

CREATE INDEX letters_run ON letters (run_id);

-- Limits that processes share: each a point in time that moves on with what is drawn from it.
CREATE TABLE meters (meter TEXT PRIMARY KEY, stands_us INTEGER NOT NULL) STRICT, WITHOUT ROWID;

-- The processes that may own runs, how often each has renewed, and what it says of itself; the proof of death is a lock file beside the database.
CREATE TABLE owners (owner TEXT PRIMARY KEY, beat INTEGER NOT NULL, about BLOB NOT NULL) STRICT, WITHOUT ROWID;

-- Work that nobody is to go on with for now: a queue, or everything, and what whoever said so says of it.
CREATE TABLE holds (what TEXT PRIMARY KEY, about BLOB NOT NULL) STRICT, WITHOUT ROWID;
