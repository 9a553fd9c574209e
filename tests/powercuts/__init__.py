"""Power cuts, I/O errors and full disks under the real SQLite: a search for an answer that was a lie.

vfs.py      a VFS that lets a watcher hear, and fail, each call of a file
disk.py     what was written, what was synced, and what a power cut leaves
daemon.py   the daemon's parts on such files, and what they say of what they did
life.py     a life of the daemon in which everything happens that writes
judge.py    whether what is found afterwards keeps every promise that was given
search.py   where the power is cut, and which calls fail
"""
