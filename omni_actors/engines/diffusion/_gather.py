"""Shared forward passes. Requests call a model's denoisers, each from its own greenlet; the calls wait here, and those
whose shapes allow it run as one pass over all their rows.

``Gather`` owns the denoisers' ``forward``. A call of it from outside a request runs as ever. What two calls must have
in common: the module, the structure of their arguments, every plain value, and the shape and type of every tensor, but
for its first dimension, which counts the rows. A tensor without that dimension must be equal in all of them, except the
time step, which is given to each row. Where a model takes a list with one tensor per row, the lists are joined.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import greenlet
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Call", "Gather", "Waits"]

logger = logging.getLogger("omni_actors.diffusion")

_TIME = frozenset(("timestep", "timesteps", "t"))
_WHOLE = frozenset(("img_ids", "txt_ids", "image_rotary_emb", "freqs_cis", "image_ids"))
"""Arguments that have no rows, whatever their first dimension may be by chance."""
_CLOSE = 0.05
"""How far, of the largest value, one request's part of a shared pass may be from the request alone, in any dtype."""


class Waits(greenlet.greenlet):  # type: ignore[misc]  # it has no stubs
    """A greenlet that waits for its calls: it is resumed with the result, or with what the pass raised."""

    adapters: tuple[tuple[str, float], ...] = ()

    def wait_for(self, call: Call) -> Any:
        """Runs in this greenlet. Hands the call to whoever resumes it."""
        assert self.parent is not None
        return self.parent.switch(call)


@attrs.define(eq=False)
class Call:
    """One call of a denoiser by one request. Its end is ``result`` or ``error``.

    ``bound``, ``rows`` and ``leaves`` are looked at only where there is another call that it might share a pass with.
    """

    module: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    adapters: tuple[tuple[str, float], ...] = ()
    result: Any = None
    error: Exception | None = None
    bound: Any = None
    rows: int = 0
    listed: bool = False
    leaves: list[_Leaf] = attrs.field(factory=list)


@attrs.frozen(eq=False)
class _Leaf:
    """One tensor among the arguments. ``kind``: ``rows``, ``time`` or ``whole``; ``items`` is a list of one per row."""

    kind: str
    value: Any

    @property
    def key(self) -> Any:
        if self.kind == "time":
            return self.kind
        if self.kind == "items":  # of other shapes, too: who takes lists takes those
            return self.kind, self.value[0].dtype, self.value[0].device
        shape = self.value.shape[1:] if self.kind == "rows" else self.value.shape
        return self.kind, tuple(shape), self.value.dtype, self.value.device


class Gather:
    """``modules``: the denoisers, by name. ``share=False``: every call is a pass of its own.

    ``activate`` makes adapters (LoRA) the active ones; passes of different adapters are different passes.
    """

    def __init__(
        self,
        modules: Mapping[str, torch.nn.Module],
        *,
        share: bool,
        activate: Callable[[tuple[tuple[str, float], ...]], None],
    ) -> None:
        self._share, self._activate = share, activate
        self._modules = modules
        self._ours: dict[str, Callable[..., Any]] = {}
        self._forwards: dict[str, Callable[..., Any]] = {}
        self._signatures: dict[str, inspect.Signature] = {}
        self._proved: dict[Any, bool] = {}
        self.overflowed = False
        self.passes = self.shared_passes = 0
        self.take_over()

    def take_over(self) -> None:
        """Own the ``forward`` of each module. Again, where it was replaced: loading adapters makes offloading anew."""
        for name, module in self._modules.items():
            if module.forward is not self._ours.get(name):
                self._take_over(name, module)

    def _take_over(self, name: str, module: torch.nn.Module) -> None:
        inner = self._forwards[name] = module.forward
        self._signatures[name] = inspect.signature(inner)

        @functools.wraps(inner)
        def forward(*args: Any, **kwargs: Any) -> Any:
            request = greenlet.getcurrent()
            if not isinstance(request, Waits):
                return inner(*args, **kwargs)
            return request.wait_for(Call(name, args, kwargs, request.adapters))

        module.forward = self._ours[name] = forward

    def run(self, calls: Sequence[Call]) -> None:
        """Give each of these calls its end. Raises nothing that belongs to one of them."""
        share = self._share and len(calls) > 1
        for group in self._groups(calls) if share else [[call] for call in calls]:
            if len(group) == 1 or not self._together(group):
                for call in group:
                    self._alone(call)

    # ------------------------------------------------------------------ who runs with whom

    def _groups(self, calls: Sequence[Call]) -> list[list[Call]]:
        groups: dict[Any, list[list[Call]]] = {}
        for call in calls:
            alike = groups.setdefault(self._key(call), [])
            fitting = next((group for group in alike if _same_wholes(group[0], call)), None)
            if fitting is None:
                alike.append([call])
            else:
                fitting.append(call)
        return [group for alike in groups.values() for group in alike]

    def _key(self, call: Call) -> Any:
        try:
            call.bound = self._signatures[call.module].bind(*call.args, **call.kwargs)
        except TypeError:  # which its own pass will raise as well, for this request alone
            return id(call)
        arguments = call.bound.arguments
        first: Any = next(iter(arguments.values()), None)
        call.listed = _all_tensors(first)
        if not call.listed and not (isinstance(first, torch.Tensor) and first.ndim):
            return id(call)
        call.rows = len(first)
        structure = tuple((name, _structure(value, name, call)) for name, value in arguments.items())
        return call.module, call.adapters, structure, tuple(leaf.key for leaf in call.leaves)

    # ------------------------------------------------------------------ passes

    def _alone(self, call: Call) -> None:
        self.passes += 1
        try:
            self._activate(call.adapters)
            call.result = self._forwards[call.module](*call.args, **call.kwargs)
        except Exception as error:
            self._note(error)
            call.error = error

    def _together(self, group: Sequence[Call]) -> bool:
        """One pass for all of them. False: it cannot be; each needs one of its own. A pass that failed is that, too:
        the fault may be one request's.
        """
        kind = group[0].module, tuple(name for name in group[0].bound.arguments)
        if self._proved.get(kind) is False:
            return False
        try:
            self._activate(group[0].adapters)
            parts = self._split(self._shared(group), group)
            if kind not in self._proved and not self._prove(kind, group[0], parts[0]):
                return False
        except Exception as error:
            self._note(error)
            return False
        self.passes += 1
        self.shared_passes += 1
        for call, part in zip(group, parts, strict=True):
            call.result = part
        return True

    def _shared(self, group: Sequence[Call]) -> Any:
        rows = [call.rows for call in group]
        joined = iter([_join(leaves, rows) for leaves in zip(*(call.leaves for call in group), strict=True)])
        first = group[0].bound
        bound = inspect.BoundArguments(first.signature, type(first.arguments)())
        for name, value in first.arguments.items():
            bound.arguments[name] = _rebuilt(value, name, joined, group[0])
        return self._forwards[group[0].module](*bound.args, **bound.kwargs)

    def _split(self, output: Any, group: Sequence[Call]) -> list[Any]:
        ends = (0, *itertools.accumulate(call.rows for call in group))
        return [_part(output, slice(*mine), ends[-1], group[0].listed) for mine in itertools.pairwise(ends)]

    def _prove(self, kind: Any, call: Call, part: Any) -> bool:
        """The first shared pass of its kind is done once more for one request alone: does the model mix its rows?

        What is not finite even alone proves nothing, and is left to the next pass.
        """
        alone = list(_tensors(self._forwards[call.module](*call.args, **call.kwargs)))
        if not all(bool(torch.isfinite(each).all()) for each in alone):
            return True
        self._proved[kind] = all(_close(a, b) for a, b in zip(_tensors(part), alone, strict=True))
        if not self._proved[kind]:
            logger.warning("%s gives other results for several requests at once: each gets its own pass", call.module)
        return self._proved[kind]

    def _note(self, error: Exception) -> None:
        """Memory that was not enough: the engine takes less at once from now on."""
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or "not enough memory" in str(error):
            self.overflowed = True
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def _structure(value: Any, name: str, call: Call) -> Any:
    """What must be equal of an argument; its tensors are collected in ``call.leaves``, in order."""
    if isinstance(value, torch.Tensor):
        call.leaves.append(_Leaf(_kind(value, name, call.rows), value))
        return "tensor"
    if name in _TIME and isinstance(value, int | float):
        call.leaves.append(_Leaf("time", torch.tensor(value)))
        return "tensor"
    if isinstance(value, dict):
        return dict, tuple((key, _structure(each, key, call)) for key, each in value.items())
    if _items(value, call):
        call.leaves.append(_Leaf("items", value))
        return "items"
    if isinstance(value, list | tuple):
        return type(value), tuple(_structure(each, name, call) for each in value)
    return value if value.__hash__ is not None else id(value)


def _all_tensors(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, torch.Tensor) for each in value)


def _items(value: Any, call: Call) -> bool:
    return call.listed and _all_tensors(value) and len(value) == call.rows


def _kind(value: torch.Tensor, name: str, rows: int) -> str:
    if name in _TIME and value.ndim < 2 and value.numel() in (1, rows):
        return "time"
    return "rows" if value.ndim and value.shape[0] == rows and name not in _WHOLE else "whole"


def _same_wholes(one: Call, other: Call) -> bool:
    pairs = zip(one.leaves, other.leaves, strict=True)
    return all(a.value is b.value or torch.equal(a.value, b.value) for a, b in pairs if a.kind == "whole")


def _join(leaves: Sequence[_Leaf], rows: Sequence[int]) -> Any:
    if leaves[0].kind == "rows":
        return torch.cat([leaf.value for leaf in leaves])
    if leaves[0].kind == "items":
        return [item for leaf in leaves for item in leaf.value]
    if leaves[0].kind == "time":
        return _times([leaf.value for leaf in leaves], rows)
    return leaves[0].value


def _times(values: Sequence[torch.Tensor], rows: Sequence[int]) -> torch.Tensor:
    """The time steps of a group: the one number where it is the same for all, else one per row."""
    first = values[0]
    if not first.ndim and all(value is first or torch.equal(value, first) for value in values[1:]):
        return first
    each = zip(values, rows, strict=True)
    return torch.cat([value.reshape(-1).to(first.device).expand(count) for value, count in each])


def _rebuilt(value: Any, name: str, joined: Iterator[Any], call: Call) -> Any:
    """The argument with its tensors replaced, in the order in which ``_structure`` met them."""
    if isinstance(value, torch.Tensor) or (name in _TIME and isinstance(value, int | float)) or _items(value, call):
        return next(joined)
    if isinstance(value, dict):
        return {key: _rebuilt(each, key, joined, call) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_rebuilt(each, name, joined, call) for each in value])
    return value


def _part(output: Any, mine: slice, rows: int, listed: bool) -> Any:
    """One request's rows of an output. Raises ValueError for a tensor that has other rows."""
    if listed and _all_tensors(output) and len(output) == rows:
        return output[mine]
    if isinstance(output, torch.Tensor):
        if not output.ndim or output.shape[0] != rows:
            raise ValueError(f"an output of shape {tuple(output.shape)} for {rows} rows")
        return output[mine]
    if isinstance(output, dict):
        return type(output)(**{name: _part(value, mine, rows, listed) for name, value in output.items()})
    if isinstance(output, list | tuple):
        return type(output)([_part(value, mine, rows, listed) for value in output])
    return output


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)


def _close(part: torch.Tensor, alone: torch.Tensor) -> bool:
    if not alone.is_floating_point():
        return bool(torch.equal(part, alone))
    scale = float(alone.abs().max()) if alone.numel() else 0.0
    return bool(torch.allclose(part.float(), alone.float(), rtol=0.0, atol=_CLOSE * scale))
