"""The drivers there are: the modules of this package that have `Settings`. So a new kind of edge is one new file.

Its name is the value of `[edge] driver` and the name of its table. What such a module holds is in `edge.Driver`.
"""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import cast

from pastebin_daemon import edge
from pastebin_daemon.edge import Driver

__all__ = ["drivers"]

_OTHERS = ("answers", "drivers")


@cache
def drivers() -> dict[str, Driver]:
    """By name, in the order of the alphabet."""
    names = [module.name for module in iter_modules(edge.__path__) if module.name not in _OTHERS]
    return {name: cast(Driver, import_module(f"{edge.__name__}.{name}")) for name in names}
