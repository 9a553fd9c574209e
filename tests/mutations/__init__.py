"""Small breaks of the protocol, and whether the searchers see them. `edits.py` lists them, `__main__.py` tries them."""
