-- Times are integer milliseconds UTC. The CHECKs refuse what no transition makes.

CREATE TABLE pastes (
    id           TEXT    NOT NULL PRIMARY KEY CHECK (length(id) >= 17 AND id NOT GLOB '*[^0-9A-Za-z]*'),
    object       TEXT    NOT NULL UNIQUE,
    created_ms   INTEGER NOT NULL,
    expires_ms   INTEGER CHECK (expires_ms > created_ms),
    size         INTEGER NOT NULL CHECK (size > 0),
    sha256       BLOB    NOT NULL CHECK (length(sha256) = 32),
    is_text      INTEGER NOT NULL CHECK (is_text IN (0, 1)),
    title        TEXT,
    language     TEXT,
    token_sha256 BLOB    NOT NULL CHECK (length(token_sha256) = 32)
) STRICT, WITHOUT ROWID;

CREATE INDEX pastes_expiry ON pastes (expires_ms) WHERE expires_ms IS NOT NULL;

-- The durable failure log: one row for each body that is on its way to the store and that no paste owns yet.
CREATE TABLE uploads (
    object     TEXT    NOT NULL PRIMARY KEY,
    paste      TEXT    NOT NULL,
    started_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX uploads_started ON uploads (started_ms);

-- A client's key is a secret: only its SHA-256 is kept.
CREATE TABLE idempotency (
    key_sha256  BLOB    NOT NULL PRIMARY KEY CHECK (length(key_sha256) = 32),
    fingerprint BLOB    NOT NULL CHECK (length(fingerprint) = 32),
    paste       TEXT    NOT NULL,
    created_ms  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_created ON idempotency (created_ms);

-- outbox.py has the table of states that these CHECKs repeat.
CREATE TABLE outbox (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    kind         TEXT    NOT NULL,
    payload      TEXT    NOT NULL,
    created_ms   INTEGER NOT NULL,
    first_due_ms INTEGER NOT NULL,
    due_ms       INTEGER NOT NULL,
    state        TEXT    NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'leased')),
    attempts     INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    generation   INTEGER NOT NULL DEFAULT 0 CHECK (generation >= 0),
    owner        TEXT,
    lease_ms     INTEGER,
    last_error   TEXT,
    replayed_by  TEXT,
    replayed_ms  INTEGER,
    CHECK ((state = 'leased') = (owner IS NOT NULL) AND (state = 'leased') = (lease_ms IS NOT NULL)),
    CHECK (state = 'pending' OR (attempts > 0 AND generation > 0)),
    CHECK ((replayed_by IS NULL) = (replayed_ms IS NULL))
) STRICT;

CREATE INDEX outbox_due ON outbox (kind, due_ms, id) WHERE state = 'pending';
CREATE INDEX outbox_leases ON outbox (kind, lease_ms, id) WHERE state = 'leased';
CREATE INDEX outbox_age ON outbox (first_due_ms);

CREATE TABLE dead_letters (
    id          INTEGER PRIMARY KEY,
    kind        TEXT    NOT NULL,
    payload     TEXT    NOT NULL,
    created_ms  INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    generation  INTEGER NOT NULL,
    last_error  TEXT,
    reason      TEXT    NOT NULL,
    died_ms     INTEGER NOT NULL,
    replayed_by TEXT,
    replayed_ms INTEGER
) STRICT;

CREATE TABLE inbox (
    outbox_id INTEGER NOT NULL,
    consumer  INTEGER NOT NULL,
    done_ms   INTEGER NOT NULL,
    PRIMARY KEY (outbox_id, consumer)
) STRICT, WITHOUT ROWID;

-- What metrics and the quota need, kept by the triggers below in the transaction that changes it: nothing counts rows.
CREATE TABLE totals (
    one          INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    pastes       INTEGER NOT NULL DEFAULT 0 CHECK (pastes >= 0),
    bytes        INTEGER NOT NULL DEFAULT 0 CHECK (bytes >= 0),
    pending      INTEGER NOT NULL DEFAULT 0 CHECK (pending >= 0),
    leased       INTEGER NOT NULL DEFAULT 0 CHECK (leased >= 0),
    dead_letters INTEGER NOT NULL DEFAULT 0 CHECK (dead_letters >= 0),
    inbox        INTEGER NOT NULL DEFAULT 0 CHECK (inbox >= 0)
) STRICT;

INSERT INTO totals (one) VALUES (1);

CREATE TRIGGER paste_in AFTER INSERT ON pastes BEGIN
    UPDATE totals SET pastes = pastes + 1, bytes = bytes + new.size;
END;

CREATE TRIGGER paste_out AFTER DELETE ON pastes BEGIN
    UPDATE totals SET pastes = pastes - 1, bytes = bytes - old.size;
END;

CREATE TRIGGER job_in AFTER INSERT ON outbox BEGIN
    UPDATE totals SET pending = pending + (new.state = 'pending'), leased = leased + (new.state = 'leased');
END;

CREATE TRIGGER job_out AFTER DELETE ON outbox BEGIN
    UPDATE totals SET pending = pending - (old.state = 'pending'), leased = leased - (old.state = 'leased');
END;

CREATE TRIGGER job_moved AFTER UPDATE OF state ON outbox WHEN old.state <> new.state BEGIN
    UPDATE totals SET pending = pending + (new.state = 'pending') - (old.state = 'pending'),
                      leased = leased + (new.state = 'leased') - (old.state = 'leased');
END;

CREATE TRIGGER dead_in AFTER INSERT ON dead_letters BEGIN
    UPDATE totals SET dead_letters = dead_letters + 1;
END;

CREATE TRIGGER dead_out AFTER DELETE ON dead_letters BEGIN
    UPDATE totals SET dead_letters = dead_letters - 1;
END;

CREATE TRIGGER inbox_in AFTER INSERT ON inbox BEGIN
    UPDATE totals SET inbox = inbox + 1;
END;

CREATE TRIGGER inbox_out AFTER DELETE ON inbox BEGIN
    UPDATE totals SET inbox = inbox - 1;
END;
