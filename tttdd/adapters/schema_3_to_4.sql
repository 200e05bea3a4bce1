-- Runs whose rollouts come from a harness of the researcher's own.
BEGIN IMMEDIATE;

ALTER TABLE runs ADD COLUMN kind TEXT NOT NULL DEFAULT 'task';
ALTER TABLE samples ADD COLUMN prompt_ids BLOB NOT NULL DEFAULT x'';

CREATE TABLE receipts (
    id            TEXT PRIMARY KEY,
    run           TEXT NOT NULL REFERENCES runs (name),
    step          INTEGER NOT NULL,
    release       INTEGER NOT NULL,
    grid_group    INTEGER,
    rollout       INTEGER,
    finish_reason TEXT NOT NULL,
    prompt_ids    BLOB NOT NULL,
    token_ids     BLOB NOT NULL,
    logprobs      BLOB NOT NULL,
    loss_mask     BLOB NOT NULL,
    text          TEXT NOT NULL,
    created       REAL NOT NULL,
    FOREIGN KEY (run, release) REFERENCES releases (run, number)
) STRICT;
CREATE INDEX receipts_of_run ON receipts (run, release);

CREATE TABLE reports (
    run        TEXT NOT NULL REFERENCES runs (name),
    receipt    TEXT NOT NULL REFERENCES receipts (id),
    report_id  TEXT,
    content    TEXT NOT NULL,
    step       INTEGER NOT NULL,
    grid_group INTEGER NOT NULL,
    rollout    INTEGER NOT NULL,
    accepted   INTEGER NOT NULL,
    created    REAL NOT NULL,
    UNIQUE (run, report_id)
) STRICT;

PRAGMA user_version = 4;
COMMIT;
