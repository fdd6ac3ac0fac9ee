"""Mutations of one expression or statement in a function, applied to the running functions of a module."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TypeVar

from tests.living_code import replace_functions, tree_of

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}
_LOGGERS = ("_LOG", "logger", "log", "warnings")
_Node = TypeVar("_Node", bound=ast.AST)


@dataclass(frozen=True)
class Mutant:
    """One mutation.

    Attributes:
        module: Module.
        number: Number of the mutation within the module.
        line: Line of the statement.
        text: What becomes what.
        statement: First line of the statement.
    """

    module: str
    number: int
    line: int
    text: str
    statement: str


def mutants_of(module: str) -> list[Mutant]:
    """Return all mutations of a module's functions."""
    mutator = _Mutator(module, None)
    mutator.visit(tree_of(module))
    return mutator.found


def apply(mutant: Mutant) -> bool:
    """Give the functions of a module the mutant's code, in this process; return whether one of them changed."""
    tree = _Mutator(mutant.module, mutant.number).visit(tree_of(mutant.module))
    return replace_functions(mutant.module, ast.fix_missing_locations(tree)) > 0


def _left_out(node: ast.stmt) -> ast.stmt:
    """Return a statement that does nothing but refer to the names of another, so that closures keep their variables."""
    return ast.If(ast.Constant(False), [node], [])


class _Mutator(ast.NodeTransformer):
    """Collect the mutations of a tree, or apply one."""

    def __init__(self, module: str, chosen: int | None) -> None:
        self._module, self._chosen = module, chosen
        self._depth = self._line = 0
        self._statement = ""
        self.found: list[Mutant] = []

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.arguments):
            return node  # messages and defaults
        if isinstance(node, ast.stmt):
            self._line, self._statement = node.lineno, ast.unparse(node).partition("\n")[0][:120]
        return super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if not any("jit" in ast.unparse(each) for each in node.decorator_list):
            self._depth += 1
            node.body = [self.visit(each) for each in node.body]
            self._depth -= 1
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = node.value and self.visit(node.value)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if not isinstance(node.value, ast.Call) or ast.unparse(node.value.func).split(".")[0] in _LOGGERS:
            return node
        return self._or(node, _left_out(node)) or self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        return self._or(node, _left_out(node)) or self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        stored = isinstance(node.targets[0], ast.Attribute | ast.Subscript)
        return (stored and self._or(node, _left_out(node))) or self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        test = self._or(node.test, ast.UnaryOp(ast.Not(), node.test))
        if test is not None:
            node.test = test
            return node
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        other = _COMPARED[type(node.ops[0])]()
        return self._or(node, ast.Compare(node.left, [other, *node.ops[1:]], node.comparators)) or self._inner(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        other = _COMPUTED.get(type(node.op))
        changed = other and self._or(node, ast.BinOp(node.left, other(), node.right))
        return changed or self._inner(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return self._or(node, ast.BoolOp(other, node.values)) or self._inner(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if isinstance(node.op, ast.Not | ast.USub):
            return self._or(node, node.operand) or self._inner(node)
        return self._inner(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool):
            return self._or(node, ast.Constant(not node.value)) or node
        if isinstance(node.value, int | float):
            return (
                self._or(
                    node, ast.Constant(node.value * 1.5 or 1.0 if isinstance(node.value, float) else node.value + 1)
                )
                or node
            )
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        other = _NAMES.get(node.id) if isinstance(node.ctx, ast.Load) else None
        return (other and self._or(node, ast.Name(other, ast.Load()))) or node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        other = _NAMES.get(node.attr) if isinstance(node.ctx, ast.Load) else None
        return (other and self._or(node, ast.Attribute(node.value, other, ast.Load()))) or self._inner(node)

    def _inner(self, node: _Node) -> _Node:
        self.generic_visit(node)
        return node

    def _or(self, node: ast.AST, changed: _Node) -> _Node | None:
        """Note a mutation; return the changed node if it is the chosen one."""
        if not self._depth:
            return None
        after = "pass" if isinstance(changed, ast.If) else ast.unparse(changed)[:80]
        text = f"{ast.unparse(node)[:80]} → {after}"
        self.found.append(Mutant(self._module, len(self.found), self._line, text, self._statement))
        chosen = self._chosen == self.found[-1].number
        return ast.copy_location(changed, node) if chosen else None
