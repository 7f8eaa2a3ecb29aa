"""The quick way of an output that is text and tokens alone, past the processor that would make an object of it.

A RequestOutput costs as much as all else that we do for a token, and in the middle of most requests it carries nothing
more than text and tokens. Such a *plain* request (no stop strings, no log probabilities) meets the processor with its
first and its last output; those in between go to its vLLM detokenizer directly. Of a request that is told as a whole
(FINAL_ONLY, as in the stages that nobody listens to) they are nobody's until the last one comes.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .interface import Sink

__all__ = ["SPECIAL", "Shortcut"]

SPECIAL = ("routed_experts", "new_sampling_mask", "pooling_output")
"""What an engine adds to outputs by its own settings, whatever the request asked for."""

_KNOWN = frozenset((
    "request_id", "new_token_ids", "new_logprobs", "new_prompt_logprobs_tensors", "finish_reason", "stop_reason",
    "events", "kv_transfer_params", "ec_transfer_params", "trace_headers", "prefill_stats", "num_cached_tokens",
    "num_nans_in_logits", "mm_cache_miss_hashes", "spec_decode_metrics", "prompt_token_id_logprobs", "error",
))  # fmt: skip
"""The fields of an output whose meaning we know. An engine that says more is left to the processor altogether."""


_KINDS = frozenset(("DELTA", "FINAL_ONLY"))
"""Of RequestOutputKind. What is told again and again from the beginning is the processor's."""


class _Plain:
    """One plain request: its state in the processor, and who hears its pieces, if anybody."""

    __slots__ = ("detokenizer", "listener", "state", "version")

    def __init__(self, state: Any, listener: Sink | None) -> None:
        self.state, self.listener, self.detokenizer = state, listener, state.detokenizer
        self.version: str | None = None


class Shortcut:
    """The plain requests of one processor, whose ``states`` are vLLM's RequestStates by key.

    ``fields``: of its engine's outputs. ``special``: at least two of them, which only the processor understands. A
    request whose output has one is not plain any more, for it may have changed its state. ``known``: more that need no
    attention.
    """

    def __init__(
        self,
        states: Mapping[str, Any],
        fields: Iterable[str],
        *,
        special: Iterable[str] = SPECIAL,
        known: Iterable[str] = (),
    ) -> None:
        fields = frozenset(fields)
        self._states = states
        self._special = attrgetter(*sorted(fields & frozenset(special)))
        self._usable = fields <= _KNOWN.union(special, known)
        self._plain: dict[str, _Plain] = {}

    def add(self, body: Any, sink: Sink) -> None:
        """A new request, which the processor has: is it plain?"""
        if self._usable and _is_plain(body) and (state := self._states[body.request_id]).detokenizer is not None:
            as_it_comes = body.sampling_params.output_kind.name == "DELTA"
            self._plain[body.request_id] = _Plain(state, sink if as_it_comes else None)

    def drop(self, keys: Iterable[str]) -> list[str]:
        """Silence these requests, plain or not, before the processor forgets them: it would put one last, aborted
        output otherwise. Those that it knows.
        """
        known = [key for key in keys if key in self._states]
        for key in known:
            self._states[key].queue = None
            self._plain.pop(key, None)
        return known

    def take(self, outputs: list[Any], version: str | None = None) -> list[Any]:
        """Put what is plain; the outputs that need the whole processor. ``version``: of the engine's weights."""
        if not self._plain:
            return outputs
        plain, special, rest = self._plain, self._special, []
        for output in outputs:
            request = plain.get(output.request_id)
            if request is None:
                rest.append(output)
            elif output.finish_reason is not None or _has_any(special(output)):
                del plain[output.request_id]
                rest.append(output)
            elif version != request.version or request.state.is_prefilling:
                request.version = version  # the processor notes where a version of the weights begins
                rest.append(output)
            else:
                tokens, detokenizer = output.new_token_ids, request.detokenizer
                detokenizer.update(tokens, False)
                if request.listener is not None:
                    request.listener.put_text(detokenizer.get_next_output_text(False, True), tokens)
        return rest


def _has_any(values: tuple[Any, ...]) -> bool:
    """Whether one of them is there. Arrays are among them, so ``in`` is no way to ask."""
    for value in values:  # noqa: SIM110  # a generator would cost three times as much, for each token
        if value is not None:
            return True
    return False


def _is_plain(body: Any) -> bool:
    """Whether its outputs carry text and tokens alone, and only the engine decides when it ends."""
    params = body.sampling_params
    return (
        params is not None
        and params.output_kind.name in _KINDS
        and params.detokenize
        and not params.stop
        and params.num_logprobs is None
        and params.prompt_logprobs is None
        and getattr(params, "prompt_logprob_token_ids", None) is None
        and not getattr(body, "resumable", False)
    )
