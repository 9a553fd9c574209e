"""The daemon with one commit for each transaction: what group commit is measured against.

`python -m tests.bench.single serve`
"""

from pastebin_daemon.cli import main
from pastebin_daemon.database import group_commit

if __name__ == "__main__":
    group_commit.COUNT_MAX = 1
    main()
