"""Living code: replace the functions of imported modules by others compiled from a changed syntax tree."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType


def tree_of(name: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(_file(name).read_text())


def replace_functions(name: str, tree: ast.Module) -> int:
    """Give the living functions of a module the code of a tree; compiled ones (numba) are left alone.

    Returns:
        The number of functions whose code differs from what it was.
    """
    module, file = import_module(name), str(_file(name))
    codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes(compile(tree, file, "exec"))}
    changed = 0
    compiled = {id(each.py_func) for each in vars(module).values() if hasattr(each, "py_func")}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename == file and id(each) not in compiled:
            code = codes.get((each.__code__.co_qualname, each.__code__.co_firstlineno))
            if code is not None and code.co_freevars == each.__code__.co_freevars:
                changed += each.__code__ != code
                each.__code__ = code
    return changed


def _file(name: str) -> Path:
    return Path(str(import_module(name).__file__))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)
