"""What is changed: mutmut's operators for expressions, and our own for statements and for state tables.

mutmut 3 leaves alone what stands outside a plain function: module-level tables, defaults of attributes and everything
under a decorator (all properties). The tables are what matters most here, so its operators are applied to the whole
module, and a table loses, swaps and gains rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import libcst as cst
from mutmut.mutation.mutators import mutation_operators

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["code", "expression_mutants", "row_mutants", "statement_mutants", "table_values"]

_EMPTY = cst.Module([])


def code(node: cst.CSTNode) -> str:
    """How it is spelled."""
    return _EMPTY.code_for_node(node)


def expression_mutants(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """mutmut's: other operators, constants and strings, dropped arguments, ``None`` for a value, forced branches."""
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            yield from operator(node)


def statement_mutants(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Left out: a call, a ``raise``, a ``del``, a ``return``. Turned round: the test of an ``if`` or of a filter."""
    if _can_be_left_out(node):
        yield cst.Pass()
    elif isinstance(node, cst.If) and not _is_turned_by_mutmut(node.test):
        yield node.with_changes(test=_negated(node.test))
    elif isinstance(node, cst.CompFor):
        for position, condition in enumerate(node.ifs):
            others = [*node.ifs[:position], *node.ifs[position + 1 :]]
            yield node.with_changes(ifs=others)
            yield node.with_changes(ifs=[*others, condition.with_changes(test=_negated(condition.test))])


def _can_be_left_out(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Expr):
        return isinstance(node.value, cst.Call | cst.Yield)
    return isinstance(node, cst.Raise | cst.Del) or (isinstance(node, cst.Return) and node.value is not None)


def _is_turned_by_mutmut(test: cst.BaseExpression) -> bool:
    if isinstance(test, cst.Comparison):
        return isinstance(
            test.comparisons[0].operator, cst.Is | cst.IsNot | cst.In | cst.NotIn | cst.Equal | cst.NotEqual
        )
    return isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not)


def _negated(test: cst.BaseExpression) -> cst.BaseExpression:
    bare = test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.UnaryOperation(cst.Not(), bare, lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def table_values(statement: cst.CSTNode) -> tuple[str, ...]:
    """The states that a table's rows lead to, as they are spelled."""
    found: dict[str, None] = {}
    for node in _walk(statement):
        if isinstance(node, cst.DictElement) and isinstance(node.value, cst.Name | cst.Attribute):
            found[code(node.value)] = None
    return tuple(found)


def row_mutants(node: cst.CSTNode, values: Sequence[str], *, whole: bool) -> Iterator[cst.CSTNode]:
    """A table that lacks a row, whose row leads elsewhere or, if it is a ``whole`` one, that has a row too many."""
    if _leads_somewhere(node):
        for value in values:
            if value != code(node.value):
                yield node.with_changes(value=cst.parse_expression(value))
    elif isinstance(node, cst.Dict):
        for position in range(len(node.elements)):
            yield node.with_changes(elements=[*node.elements[:position], *node.elements[position + 1 :]])
        if whole:
            yield from _longer(node, values)
    elif isinstance(node, cst.Tuple) and len(node.elements) > 1:
        for position in range(len(node.elements)):
            yield node.with_changes(elements=_closed([*node.elements[:position], *node.elements[position + 1 :]]))


def _leads_somewhere(node: cst.CSTNode) -> TypeGuard[cst.DictElement | cst.Arg]:
    if isinstance(node, cst.DictElement):
        return isinstance(node.value, cst.Name | cst.Attribute)
    return isinstance(node, cst.Arg) and isinstance(node.value, cst.Attribute)


def _closed(elements: list[cst.BaseElement]) -> list[cst.BaseElement]:
    """A tuple of one needs its comma."""
    return [elements[0].with_changes(comma=cst.Comma())] if len(elements) == 1 else elements


def _longer(table: cst.Dict, values: Sequence[str]) -> Iterator[cst.Dict]:
    inner = [element.value for element in table.elements if isinstance(element.value, cst.Dict | cst.Call)]
    if inner:
        yield from _longer_inside(table)
    elif values:
        for key in _missing_keys(table, values):
            yield _with_row(table, f"{key}: {_stays(key, values)}")


def _longer_inside(table: cst.Dict) -> Iterator[cst.Dict]:
    """A table of tables: each inner one gets each row that only others have."""
    rows = [
        {code(row.key) if isinstance(row, cst.DictElement) else code(row.value): row for row in element.value.elements}
        for element in table.elements
        if isinstance(element, cst.DictElement) and isinstance(element.value, cst.Dict)
    ]
    known = {name: row for found in rows for name, row in found.items()}
    for position, element in enumerate(table.elements):
        if not isinstance(element, cst.DictElement) or not isinstance(element.value, cst.Dict):
            continue
        mine = {
            code(row.key) if isinstance(row, cst.DictElement) else code(row.value) for row in element.value.elements
        }
        for name, row in known.items():
            if name not in mine:
                text = code(row.with_changes(comma=cst.MaybeSentinel.DEFAULT))
                longer = element.with_changes(value=_with_row(element.value, text))
                yield table.with_changes(elements=[*table.elements[:position], longer, *table.elements[position + 1 :]])


def _missing_keys(table: cst.Dict, values: Sequence[str]) -> Iterable[str]:
    keys = [element.key for element in table.elements if isinstance(element, cst.DictElement)]
    pairs = [key.elements for key in keys if isinstance(key, cst.Tuple)]
    if pairs:
        firsts = dict.fromkeys([*(code(first.value) for first, _ in pairs), *values])
        seconds = dict.fromkeys(code(second.value) for _, second in pairs)
        every = [f"({first}, {second})" for first in firsts for second in seconds]
    else:
        every = list(values)
    present = {code(key) for key in keys}
    return [key for key in every if key not in present]


def _stays(key: str, values: Sequence[str]) -> str:
    """Where a row too many leads: it stays where it was, if that is somewhere."""
    own = key.strip("()").split(",")[0]
    return own if own in values else values[0]


def _with_row(table: cst.Dict, row: str) -> cst.Dict:
    extra = cst.ensure_type(cst.parse_expression("{" + row + "}"), cst.Dict).elements
    if not table.elements:
        return table.with_changes(elements=extra)
    *most, last = table.elements
    return table.with_changes(elements=[*most, last.with_changes(comma=cst.Comma()), *extra])


def _walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _walk(child)
