-- Runs that do not train; what the programs of the archive returned.
BEGIN IMMEDIATE;

ALTER TABLE runs ADD COLUMN mode TEXT NOT NULL DEFAULT 'discover';
ALTER TABLE nodes ADD COLUMN artifact TEXT NOT NULL DEFAULT '';

CREATE TABLE artifacts (
    run    TEXT NOT NULL REFERENCES runs (name),
    sha256 TEXT NOT NULL,
    json   BLOB NOT NULL,
    PRIMARY KEY (run, sha256)
) STRICT, WITHOUT ROWID;

PRAGMA user_version = 3;
COMMIT;
