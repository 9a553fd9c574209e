"""What stands in a state directory, as JSON: run inside of the mount namespace of the daemon that has it.

SQLite follows links by itself, so it can't be led there by /proc/PID/root.
"""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path


def main() -> None:
    state = Path(sys.argv[1])

    def ask(file: str, sql: str) -> list[object]:
        if not (state / file).exists():  # the bodies are in an S3
            return []
        with closing(sqlite3.connect(f"file:{state / file}?mode=ro", uri=True, timeout=10)) as connection:
            return [row[0] for row in connection.execute(sql)]

    metadata, bodies = "pastebin.sqlite", "bodies.sqlite"
    found = {
        "uploads": ask(metadata, "select object from uploads"),  # first, since they become jobs
        "jobs": ask(metadata, "select last_error from outbox"),
        "dead": ask(metadata, "select last_error from dead_letters"),
        "live": ask(metadata, "select id from pastes"),
        "owned": ask(metadata, "select object from pastes"),
        "stored": ask(bodies, "select key from objects"),
        "integrity": ask(metadata, "pragma integrity_check") + ask(bodies, "pragma integrity_check"),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
