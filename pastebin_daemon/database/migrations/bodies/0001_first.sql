-- The embedded body store. `stored_ms` is this store's own clock, which the reap's age floor goes by.

CREATE TABLE objects (
    key       TEXT    NOT NULL UNIQUE,
    stored_ms INTEGER NOT NULL,
    body      BLOB    NOT NULL
) STRICT;
