-- The commit of a paste is one statement, not two: beside a busy loop each costs the writer a third of a millisecond.

DROP TRIGGER paste_in;

CREATE TRIGGER paste_in AFTER INSERT ON pastes BEGIN
    UPDATE totals SET pastes = pastes + 1, bytes = bytes + new.size;
    DELETE FROM uploads WHERE object = new.object;
END;
