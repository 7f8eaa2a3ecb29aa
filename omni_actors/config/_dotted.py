"""Dotted paths: ``package.module:name`` names a function or class in a spec, which holds only data."""

from __future__ import annotations

import importlib
import re
from typing import Any

from omni_actors._errors import ConfigError
from omni_actors.config._hints import did_you_mean

__all__ = ["is_dotted", "load_object"]

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*\Z")


def is_dotted(path: str) -> bool:
    """Whether ``path`` has the form ``package.module:name`` (``name`` may be ``Class.method``)."""
    return _DOTTED.match(path) is not None


def load_object(path: str) -> Any:
    """The object that ``package.module:name`` names; imports the module, so this may be slow.

    Raises ConfigError (``path`` set) for a wrong form, a module that is missing or fails to import (its error is the
    ``__cause__``), and a name that the module lacks (the hint is the nearest one it has).
    """
    if not is_dotted(path):
        raise ConfigError(f"{path[:80]!r} is not a dotted path", path=path[:80], hint="write package.module:name")
    module_name, _, names = path.partition(":")
    found = _import(module_name, path)
    for name in names.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            public = [known for known in dir(found) if not known.startswith("_")]
            where = getattr(found, "__name__", module_name)
            raise ConfigError(f"{where} has no '{name}'", path=path, hint=did_you_mean(name, public)) from None
    return found


def _import(name: str, path: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(f"there is no module '{error.name}'", path=path, hint=_sibling_hint(error.name)) from None
        raise ConfigError(f"importing '{name}' failed: {error}", path=path) from error
    except Exception as error:
        problem = f"importing '{name}' failed: {type(error).__name__}: {error}"
        raise ConfigError(problem, path=path) from error


def _sibling_hint(missing: str) -> str | None:
    """The nearest module beside ``missing``, where its package exists."""
    import pkgutil
    import sys

    parent, _, leaf = missing.rpartition(".")
    if parent and parent not in sys.modules:
        return None
    path = getattr(sys.modules[parent], "__path__", None) if parent else None
    if parent and path is None:
        return f"'{parent}' is a module, not a package"
    names = [module.name for module in pkgutil.iter_modules(path)] if parent else list(sys.modules)
    hint = did_you_mean(leaf, names)
    return hint if parent or hint.startswith("did") else None
