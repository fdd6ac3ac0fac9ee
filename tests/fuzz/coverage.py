"""Line coverage of chosen modules by instrumented functions: a set insertion per statement, no trace function."""

from __future__ import annotations

import ast
from importlib import import_module

from tests.living_code import replace_functions, tree_of

_MARK = "_reached_line"


class Coverage:
    """Coverage of the functions of some modules, which are instrumented in place.

    Args:
        modules: Names of modules; compiled functions (numba) are left alone.

    Attributes:
        reached: (module, line) of every statement that ran.
    """

    def __init__(self, modules: tuple[str, ...]) -> None:
        self.reached: set[tuple[str, int]] = set()
        self._lines = {name: _instrument(name, self.reached) for name in modules}

    def shares(self) -> dict[str, float]:
        """Return the share of the statements of each module's functions that were reached."""
        counts = {name: sum(module == name for module, _ in self.reached) for name in self._lines}
        return {name: round(counts[name] / max(len(lines), 1), 3) for name, lines in self._lines.items()}


def _instrument(name: str, reached: set[tuple[str, int]]) -> set[int]:
    """Give the functions of a module code that notes each statement; return the statements' lines."""
    marker = _Marker(name)
    vars(import_module(name))[_MARK] = reached.add
    replace_functions(name, ast.fix_missing_locations(marker.visit(tree_of(name))))
    return marker.lines


class _Marker(ast.NodeTransformer):
    """Put a call before every statement of every function."""

    def __init__(self, module: str) -> None:
        self._module, self._inside = module, False
        self.lines: set[int] = set()

    def generic_visit(self, node: ast.AST) -> ast.AST:
        outside, self._inside = self._inside, self._inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        super().generic_visit(node)
        if self._inside:
            for field in ("body", "orelse", "finalbody"):
                statements = getattr(node, field, None)
                if isinstance(statements, list) and statements and isinstance(statements[0], ast.stmt):
                    setattr(node, field, [each for one in statements for each in (self._mark(one), one)])
        self._inside = outside
        return node

    def _mark(self, statement: ast.stmt) -> ast.stmt:
        self.lines.add(statement.lineno)
        where = ast.Tuple([ast.Constant(self._module), ast.Constant(statement.lineno)], ast.Load())
        return ast.copy_location(ast.Expr(ast.Call(ast.Name(_MARK, ast.Load()), [where], [])), statement)
