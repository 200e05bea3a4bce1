-- State of every run.  JSON columns hold what is only ever read whole; log-probs and tokens are packed arrays.
BEGIN IMMEDIATE;

CREATE TABLE runs (
    name       TEXT PRIMARY KEY,
    task       TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('queued', 'running', 'paused', 'finished', 'failed', 'cancelled')),
    reason     TEXT NOT NULL DEFAULT '',
    seed       INTEGER NOT NULL,
    steps      INTEGER NOT NULL,
    groups     INTEGER NOT NULL,
    rollouts   INTEGER NOT NULL,
    identity   TEXT NOT NULL,                       -- JSON: what makes two runs the same experiment
    created    REAL NOT NULL,                       -- Unix time
    step       INTEGER NOT NULL DEFAULT 0,          -- step in hand; all below it are committed
    phase      TEXT NOT NULL DEFAULT 'ready' CHECK (phase IN ('ready', 'pending')),
    release    INTEGER NOT NULL DEFAULT 0,          -- newest committed release; samples the step in hand
    expansions INTEGER NOT NULL DEFAULT 0,
    number     INTEGER NOT NULL DEFAULT 0,          -- order of submission, whatever the clock says
    priority   INTEGER NOT NULL DEFAULT 0,          -- of queued runs the highest is taken first
    waits      INTEGER NOT NULL DEFAULT 0,          -- paused until there is room on the disk
    origin     TEXT NOT NULL DEFAULT '',            -- run whose release and archive it went on from
    first_step INTEGER NOT NULL DEFAULT 0,          -- what its origin had committed
    mode       TEXT NOT NULL DEFAULT 'discover',    -- protocol.Mode
    kind       TEXT NOT NULL DEFAULT 'task'         -- protocol.Kind
) STRICT, WITHOUT ROWID;

CREATE TABLE releases (
    run     TEXT NOT NULL REFERENCES runs (name),
    number  INTEGER NOT NULL,
    step    INTEGER NOT NULL,                       -- step that trained it; -1 for release 0, the base model
    path    TEXT,                                   -- relative to the run's folder
    load_id TEXT NOT NULL DEFAULT '',               -- the engine's, from the proof
    created REAL NOT NULL,
    PRIMARY KEY (run, number),
    UNIQUE (run, step)                              -- no step is trained twice
) STRICT, WITHOUT ROWID;

CREATE TABLE steps (
    run     TEXT NOT NULL REFERENCES runs (name),
    step    INTEGER NOT NULL,
    phase   TEXT NOT NULL CHECK (phase IN ('pending', 'committed')),
    release INTEGER NOT NULL,                       -- release that sampled it
    batch   TEXT NOT NULL,                          -- relative to the run's folder; empty where nothing is trained
    metrics TEXT NOT NULL,                          -- JSON
    proof   TEXT,                                   -- JSON: proof of the release that the step ended with
    PRIMARY KEY (run, step),
    FOREIGN KEY (run, release) REFERENCES releases (run, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE programs (
    sha256 TEXT PRIMARY KEY,
    source TEXT NOT NULL
) STRICT;

CREATE TABLE nodes (
    run         TEXT NOT NULL REFERENCES runs (name),
    id          INTEGER NOT NULL,
    parent      INTEGER,
    seed        INTEGER NOT NULL,
    pruned      INTEGER NOT NULL DEFAULT 0,         -- kept for lineage; no part of the search any more
    program     TEXT NOT NULL REFERENCES programs (sha256),
    form        TEXT NOT NULL,                      -- hash of the program's normal form
    output      TEXT NOT NULL,
    reward      REAL NOT NULL,
    objective   REAL,
    visits      INTEGER NOT NULL,
    best_child  REAL,
    step        INTEGER NOT NULL,                   -- step that found it; -1 for seeds
    certificate TEXT NOT NULL,                      -- JSON
    artifact    TEXT NOT NULL DEFAULT '',           -- SHA-256 of what it returned
    PRIMARY KEY (run, id),
    FOREIGN KEY (run, parent) REFERENCES nodes (run, id)
) STRICT;
CREATE INDEX nodes_by_reward ON nodes (run, reward DESC, id);

CREATE TABLE artifacts (                            -- of the living nodes and of the step in hand, small ones only
    run    TEXT NOT NULL REFERENCES runs (name),
    sha256 TEXT NOT NULL,
    json   BLOB NOT NULL,                           -- compressed by zlib
    PRIMARY KEY (run, sha256)
) STRICT, WITHOUT ROWID;

CREATE TABLE rollouts (
    run           TEXT NOT NULL REFERENCES runs (name),
    step          INTEGER NOT NULL,
    grid_group    INTEGER NOT NULL,
    rollout       INTEGER NOT NULL,
    release       INTEGER NOT NULL,                 -- release that sampled it
    parent        INTEGER NOT NULL,
    program       TEXT REFERENCES programs (sha256),
    finish_reason TEXT NOT NULL,
    tokens        INTEGER NOT NULL,
    verdict       TEXT NOT NULL,                    -- JSON
    recorded      REAL NOT NULL,                    -- Unix time
    PRIMARY KEY (run, step, grid_group, rollout),   -- no coordinate is judged twice
    FOREIGN KEY (run, release) REFERENCES releases (run, number),
    FOREIGN KEY (run, parent) REFERENCES nodes (run, id)
) STRICT;

CREATE TABLE samples (                              -- deleted at commit: the batch file holds them
    run        TEXT NOT NULL,
    step       INTEGER NOT NULL,
    grid_group INTEGER NOT NULL,
    rollout    INTEGER NOT NULL,
    token_ids  BLOB NOT NULL,                       -- int32
    logprobs   BLOB NOT NULL,                       -- float64
    loss_mask  BLOB NOT NULL,                       -- uint8
    text       TEXT NOT NULL,
    prompt_ids BLOB NOT NULL DEFAULT x'',           -- int32; empty where the prompt is the group's own
    PRIMARY KEY (run, step, grid_group, rollout),
    FOREIGN KEY (run, step, grid_group, rollout) REFERENCES rollouts (run, step, grid_group, rollout)
) STRICT;

CREATE TABLE receipts (                             -- completions that a harness was given
    id            TEXT PRIMARY KEY,
    run           TEXT NOT NULL REFERENCES runs (name),
    step          INTEGER NOT NULL,                 -- step in hand when it was sampled
    release       INTEGER NOT NULL,                 -- release that sampled it
    grid_group    INTEGER,                          -- where it was reported, once it is
    rollout       INTEGER,
    finish_reason TEXT NOT NULL,
    prompt_ids    BLOB NOT NULL,                    -- int32; these are empty once reported, or of an earlier release
    token_ids     BLOB NOT NULL,                    -- int32
    logprobs      BLOB NOT NULL,                    -- float64
    loss_mask     BLOB NOT NULL,                    -- uint8
    text          TEXT NOT NULL,
    created       REAL NOT NULL,                    -- Unix time
    FOREIGN KEY (run, release) REFERENCES releases (run, number)
) STRICT;
CREATE INDEX receipts_of_run ON receipts (run, release);

CREATE TABLE reports (                              -- those that were accepted, and those that can be asked for again
    run        TEXT NOT NULL REFERENCES runs (name),
    receipt    TEXT NOT NULL REFERENCES receipts (id),
    report_id  TEXT,                                -- the harness's
    content    TEXT NOT NULL,                       -- JSON: the report as it was sent
    step       INTEGER NOT NULL,
    grid_group INTEGER NOT NULL,
    rollout    INTEGER NOT NULL,
    accepted   INTEGER NOT NULL,                    -- 0: its coordinate had a report already
    created    REAL NOT NULL,                       -- Unix time
    UNIQUE (run, report_id)
) STRICT;

CREATE TABLE daemon (                               -- one row
    paused INTEGER NOT NULL
) STRICT;
INSERT INTO daemon (paused) VALUES (0);

PRAGMA user_version = 4;
COMMIT;
