"""A self-hosted pastebin daemon. Start reading at `daemon.py`."""
