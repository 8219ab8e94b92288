-- Which runs refer to which blobs, and which blobs consist of others; the blobs themselves are files beside the database.
-- A store has these tables from its first reference on.

CREATE TABLE IF NOT EXISTS blob_refs (run_id TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (run_id, digest)) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS blob_parts (whole TEXT NOT NULL, part TEXT NOT NULL, PRIMARY KEY (whole, part)) STRICT, WITHOUT ROWID;
