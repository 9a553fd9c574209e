"""SQLite, and the rules that make it safe to answer 201 and 204.

What it guarantees:

- **A write that returned is on the disk** (G1, G2): WAL with `synchronous=FULL`, set explicitly. With NORMAL a power cut
  undoes commits that were already answered.
- **One connection writes and checkpoints.** SQLite before 3.51.3 can corrupt a WAL that two connections reset at the
  same instant. Readers are `query_only` and close before the writer does.
- **A transaction is a plain function of `tx`**, so it cannot await and cannot hold a lock over the network (G10). It
  happens at one instant, `tx.now_ms`, and may run twice: it touches nothing but `tx`.
- **Group commit**: all writers that wait share one BEGIN and one sync, and each fails alone: what one wrote before it
  failed is undone, and nothing else. Calls of one function may run as one (`batch.py`), each with a result of its own.
- **What must follow a commit follows it.** A transition says what happened by `tx.emit(event)`; subscribers are called
  in the loop step that resolves the commit, before any waiter goes on and whatever became of the caller. So no caller
  can forget a tombstone, and no cancelled request can lose one.
- **A full disk is a known outcome**: the group is rolled back; a reserve file makes room for its members that do not grow
  the database, which run again one by one. Those that grow it get `StorageFull`, until there is space.
- **Any other failed COMMIT has an unknown outcome** (the rows can come back at the next start): the waiters get
  `DatabaseUnavailable`, nothing is tried again on the handle, and `Database.failed` ends the process so that its
  supervisor starts it anew.
"""

from pastebin_daemon.database.batch import batched_by, only
from pastebin_daemon.database.database import Database, open_database
from pastebin_daemon.database.ownership import hold_directory
from pastebin_daemon.database.transaction import Tx

__all__ = ["Database", "Tx", "batched_by", "hold_directory", "only", "open_database"]
