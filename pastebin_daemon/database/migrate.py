"""Migrations: numbered `.sql` files, one transaction each, counted in `user_version`.

A file is never changed once released; a later one changes what it made. A database of a newer version is refused, since
this code would not know what its rows promise.
"""

import sqlite3
from importlib import resources

from pastebin_daemon.errors import StartError

__all__ = ["bring_up", "scripts"]


def scripts(schema: str) -> list[str]:
    """The migrations of a schema in their order; number N brings `user_version` from N - 1 to N."""
    folder = resources.files("pastebin_daemon.database") / "migrations" / schema
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    for number, file in enumerate(files, start=1):
        assert file.name.startswith(f"{number:04}_"), file.name
    return [file.read_text("utf-8") for file in files]


def bring_up(connection: sqlite3.Connection, schema: str) -> None:
    """Run what is missing. Raises `StartError` for a database that is newer than this program."""
    known = scripts(schema)
    (version,) = connection.execute("pragma user_version").fetchone()
    if version > len(known):
        raise StartError(
            f"the {schema} database has version {version}, this program knows {len(known)}: "
            "start the newer program again, or restore a backup from before the upgrade"
        )
    for number, script in enumerate(known[version:], start=version + 1):
        connection.execute("begin immediate")
        try:
            for statement in _statements(script):
                connection.execute(statement)
            connection.execute(f"pragma user_version = {number}")
            connection.execute("commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise


def _statements(script: str) -> list[str]:
    """Cut a script into statements (a trigger's body holds semicolons, so SQLite is asked where one ends)."""
    statements, part = [], ""
    for line in script.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            statements.append(part)
            part = ""
    assert not part.strip(), part
    return statements
