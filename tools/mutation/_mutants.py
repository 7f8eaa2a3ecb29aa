"""The mutants of one module: every change of one node that changes what the module does.

Left out from the start: docstrings, type annotations and aliases, imports, ``__all__``, the names and numbers of enum
members, and texts that only a person reads (the message of a ``raise``, of an ``assert``).
"""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import libcst as cst

from ._operators import code, expression_mutants, row_mutants, statement_mutants, table_values

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Mutant", "mutants_of"]

Change = tuple[cst.CSTNode, cst.CSTNode, str]
"""A node, what becomes of it, and the scope it is in."""

_ENUMS = ("Enum", "IntEnum", "enum.Enum", "enum.IntEnum")


@dataclass(frozen=True)
class Mutant:
    """One changed module. ``scope`` is the function, class or table it is in; ``before`` and ``after`` are lines."""

    path: str
    line: int
    scope: str
    before: str
    after: str
    source: str

    @property
    def words(self) -> tuple[str, str, str]:
        """How it is told from the others; it does not change with the lines above it."""
        return self.scope, self.before, self.after


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Every mutant of this module, in the order of the source, none of them twice."""
    module = cst.parse_module(source)
    seen, found = {_meaning(source)}, []
    texts = [module.code_for_node(statement) for statement in module.body]
    for number, statement in enumerate(module.body):
        before = _header(module) + "".join(texts[:number])
        after = "".join(texts[number + 1 :])
        for node, changed, scope in _changes(statement):
            mutated = before + module.code_for_node(statement.deep_replace(node, changed)) + after
            meaning = _meaning(mutated)
            if meaning is not None and meaning not in seen:
                seen.add(meaning)
                found.append(_mutant(path, scope, source, mutated))
    return _numbered(found)


def _header(module: cst.Module) -> str:
    return "".join(module.code_for_node(line) for line in module.header)


def _changes(statement: cst.CSTNode) -> list[Change]:
    collector = _Collector()
    statement.visit(collector)
    return collector.changes


def _mutant(path: str, scope: str, source: str, mutated: str) -> Mutant:
    old, new = source.splitlines(), mutated.splitlines()
    first = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)) - 1)
    tail = 0
    while tail < min(len(old), len(new)) - first - 1 and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    before = _one_line(old[first : len(old) - tail])
    after = _one_line(new[first : len(new) - tail])
    return Mutant(path, first + 1, scope, *_shorter(before, after), mutated)


def _one_line(lines: Sequence[str]) -> str:
    return " ".join(line.partition("  # ")[0].strip() for line in lines)


def _shorter(before: str, after: str) -> tuple[str, str]:
    """Without the neighbours of what was added or left out."""
    if before.endswith(after):
        return before.removesuffix(after).strip(), "(gone)"
    if len(after) > len(before) and after.startswith(before.rstrip(",")):
        return "(a row more)", after.removeprefix(before.rstrip(",")).strip(", ")
    return before, after


def _numbered(found: Sequence[Mutant]) -> list[Mutant]:
    """The same change can be made in two places of one scope; the later ones say so."""
    counts: Counter[tuple[str, str, str]] = Counter()
    numbered = []
    for mutant in sorted(found, key=lambda mutant: mutant.line):
        counts[mutant.words] += 1
        again = f" (#{counts[mutant.words]})" if counts[mutant.words] > 1 else ""
        numbered.append(replace(mutant, after=mutant.after + again))
    return numbered


class _Collector(cst.CSTVisitor):
    """Walks one statement of a module and owns the changes found so far."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Change] = []
        self._inside: list[cst.CSTNode] = []
        self._table: cst.BaseExpression | None = None
        self._values: tuple[str, ...] = ()
        self._keys: set[cst.CSTNode] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if self._excluded(node):
            return False
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._inside.append(node)
        elif isinstance(node, cst.Assign | cst.AnnAssign) and not self._inside:
            self._inside.append(node)
            self._table, self._values = node.value, table_values(node)
        if isinstance(node, cst.DictElement) and self._in_table:
            self._keys.add(node.key)  # a row with another key is a row less
        self._change(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if self._inside and self._inside[-1] is original_node:
            self._inside.pop()

    def _change(self, node: cst.CSTNode) -> None:
        scope = ".".join(_name(each) for each in self._inside)
        found = [*expression_mutants(node), *statement_mutants(node)]
        if self._in_table:
            found += row_mutants(node, self._values, whole=node is self._table)
        self.changes += [(node, changed, scope) for changed in found]

    @property
    def _in_table(self) -> bool:
        return bool(self._inside) and isinstance(self._inside[0], cst.Assign | cst.AnnAssign)

    def _excluded(self, node: cst.CSTNode) -> bool:
        if node in self._keys:
            return True
        match node:
            case cst.Annotation() | cst.Import() | cst.ImportFrom() | cst.AssignTarget():
                return True
            case cst.If(test=cst.Name("TYPE_CHECKING")):
                return True
            case cst.ClassDef():
                return any(code(base.value) in _ENUMS for base in node.bases)
            case cst.Decorator():
                return not isinstance(node.decorator, cst.Call)
            case cst.Assign() | cst.AnnAssign() if not self._inside:
                return _name(node).startswith("__") or _is_alias(node)
        return False


def _name(node: cst.CSTNode) -> str:
    match node:
        case cst.FunctionDef(name=name) | cst.ClassDef(name=name) | cst.AnnAssign(target=name):
            return code(name)
        case cst.Assign(targets=[first, *_]):
            return code(first.target)
    raise TypeError(f"{type(node).__name__} has no name")


def _is_alias(node: cst.Assign | cst.AnnAssign) -> bool:
    """``Row = dict[...]``, ``Event = A | B``, ``T = TypeVar("T")``: names of types."""
    value = node.value
    if isinstance(value, cst.Call) and isinstance(value.func, cst.Name):
        return value.func.value == "TypeVar"
    return isinstance(value, cst.Subscript) or (
        isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.BitOr)
    )


# ---------------------------------------------------------------------- two sources that mean the same


def _meaning(source: str) -> str | None:
    """The syntax tree without texts for people; None for what Python would not take."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            compile(source, "mutant", "exec", dont_inherit=True)
        return ast.dump(_Silent().visit(ast.parse(source)))
    except SyntaxError:
        return None


class _Silent(ast.NodeTransformer):
    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        for call in ast.walk(node):
            if isinstance(call, ast.Call):
                call.args = [arg for arg in call.args if not _is_text(arg)]
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        node.msg = None
        return self.generic_visit(node)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | None))
