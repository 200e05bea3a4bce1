-- The order of submission stands by itself; runs have a priority and an origin, and wait for room; a pause is kept.
BEGIN IMMEDIATE;

ALTER TABLE runs ADD COLUMN number INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN waits INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN origin TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN first_step INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET number =
    (SELECT count(*) FROM runs AS other WHERE (other.created, other.name) < (runs.created, runs.name));

CREATE TABLE daemon (
    paused INTEGER NOT NULL
) STRICT;
INSERT INTO daemon (paused) VALUES (0);

PRAGMA user_version = 2;
COMMIT;
