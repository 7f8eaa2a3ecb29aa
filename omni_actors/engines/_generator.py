"""What a GenerationEngine hosts: the interface of a user's class, and how it is found and made."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import attrs

__all__ = ["Chunk", "Generator", "Item", "Step", "Unloadable", "load_generator"]


@attrs.frozen(kw_only=True)
class Chunk:
    """One piece of an item's output: tensors (ndarrays, or ``wire.omni.Tensor``) by name, plain values beside them.

    ``meta["text"]`` makes it a piece of text. ``finished`` ends the item with this chunk; without it the item ends when
    its iterator does. ``finish_reason`` goes out with the end.
    """

    tensors: Mapping[str, Any] = attrs.field(factory=dict)
    meta: Mapping[str, Any] = attrs.field(factory=dict)
    finished: bool = False
    finish_reason: str | None = None


@attrs.frozen(kw_only=True)
class Step:
    """How far an item is: ``done`` of ``total`` steps (0: unknown), ``eta_s`` seconds to go (None: unknown).

    ``preview``: what it looks like by now, uint8, shape (height, width, 3). ``shown``: the item's reader wants to know;
    the host itself is content with hearing of it a few times a second.
    """

    done: int
    total: int = 0
    eta_s: float | None = None
    preview: Any = None
    shown: bool = False


@attrs.define(kw_only=True, eq=False)
class Item:
    """One piece of work. ``prompt`` and ``params`` are what the caller gave; ``index`` is the sample, 0 … n-1.

    ``state`` belongs to the class: the engine never looks at it.
    """

    key: str
    prompt: Any
    params: Mapping[str, Any]
    index: int = 0
    state: Any = None


@runtime_checkable
class Generator(Protocol):
    """The interface of a hosted class. It is made once, as ``Class(**engine_args)``, and called from one thread.

    Work is done in rounds. In a round the engine admits waiting items (up to ``max_batch``), calls ``step`` if there is
    one, then takes one chunk (or Step) of each item's iterator. So a class without batching is one generator function::

        class Beep:
            def start(self, item):
                for n in item.prompt:
                    yield Chunk(tensors={"audio": beep(n)}, meta={"sample_rate": 24_000})

    and a batching one does its shared computation in ``step`` and hands it out in the iterators by ``item.state``.

    - An abort takes effect before the next chunk: the iterator is closed (``GeneratorExit`` at its ``yield``), and the
      item is in no later ``step``.
    - What ``start`` or an iterator raises fails that item alone; what ``step`` raises fails every item in the batch.
      ``InvalidRequest`` says that the caller is to blame.
    - ``joinable = False`` (an attribute of the class): no item joins while others are at work.
    - ``fits(item, batch)`` says whether there is room for one more; asked only where others are at work.
    - Public methods can be called from the host (``call``) between rounds, with and for plain values. They run one
      after the other in a thread of their own, in which no round runs; aborts take effect meanwhile.
    - A computation that keeps Python's interpreter lock for longer than the stage's ``hang_s`` looks frozen.
    - A step that takes long may listen meanwhile: ``hear(listen)`` is given a function, once, that takes note of what
      the host has said since (an abort closes its item's iterator) and starts the clock of the step anew.

    Optional, thus not part of the Protocol's check: ``joinable: bool``, ``step(self, batch: Sequence[Item]) -> None``,
    ``fits(self, item: Item, batch: Sequence[Item]) -> bool`` and ``hear(self, listen: Callable[[], None]) -> None``.
    """

    def start(self, item: Item) -> Iterator[Chunk | Step]:
        """Begin an item: the iterator of its chunks. May set ``item.state`` for ``step``, which comes first."""
        ...


class Unloadable(Exception):
    """Raised when a class cannot be made; the message is one line that names it."""


def load_generator(path: str, args: Mapping[str, Any]) -> Generator:
    """Make the class at ``package.module:Class`` with these keyword arguments. Raises Unloadable."""
    module_name, _, name = path.partition(":")
    try:
        made = getattr(importlib.import_module(module_name), name)(**args)
    except Unloadable:
        raise
    except Exception as error:
        raise Unloadable(f"{path} cannot be started: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(made, Generator):
        raise Unloadable(f"{path} cannot be started: it has no method start(item)")
    return made


def first_line(error: BaseException) -> str:
    """The first line of an error's own words."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no further words"


def optional_step(generator: Generator) -> Any:
    """The class's ``step``, or a function that does nothing."""
    return getattr(generator, "step", _no_step)


def optional_fits(generator: Generator) -> Any:
    """The class's ``fits``, or a function that has always room."""
    return getattr(generator, "fits", _always)


def _no_step(batch: Sequence[Item]) -> None:
    """What a class without batching does before a round."""


def _always(item: Item, batch: Sequence[Item]) -> bool:
    """How much a class takes that does not say: as much as ``max_batch`` allows."""
    return True
