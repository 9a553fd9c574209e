"""`python -m pastebin_daemon` is the command `pastebin-daemon`."""

from pastebin_daemon.cli import main

main()
