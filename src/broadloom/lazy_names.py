"""Names of a package that are loaded at their first use (PEP 562), so that importing it is quick."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The function `__getattr__` of a package whose names are loaded at their first use.

    Args:
        package: the package's full name.
        modules: for each name, the module below the package that defines it.

    Examples:
        >>> load = lazy_names("broadloom", {"InputError": "errors"})
        >>> load("InputError").__name__
        'InputError'
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        vars(import_module(package)).setdefault(name, value)
        return value

    return load
