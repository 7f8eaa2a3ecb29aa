"""Our outputs as vLLM's: what ``generate`` yields.

The runtime always streams what is new (DELTA). Here that becomes what the caller's ``output_kind`` says, with vLLM's
own ``RequestOutput.add`` doing the adding up. A plain output in the middle has no native object (see ``TextChunk``): it
is made here of its text and tokens, with the request's data from the first one, which always has one.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omni_actors import Output, TextChunk

__all__ = ["Assembler"]


class Assembler:
    """One request's RequestOutputs. Lives in the reader's thread.

    ``choices``: how many are awaited; ``finished`` once the last of them has ended, or the request was aborted.
    """

    def __init__(
        self, request_id: str, stage: str, kind: RequestOutputKind, choices: int, *, text: str | None, tokens: list[int]
    ) -> None:
        self.finished = False
        self._id, self._stage, self._prompt, self._tokens = request_id, stage, text, tokens
        self._delta, self._final = kind == RequestOutputKind.DELTA, kind == RequestOutputKind.FINAL_ONLY
        self._left = set(range(choices))
        self._base: Any = None
        self._whole: Any = None  # everything so far; for DELTA, never made

    def take(self, outputs: Sequence[Output]) -> Any:
        """One RequestOutput of these, or None if there is nothing to say yet."""
        if self._delta and (made := self._plain(outputs)) is not None:
            return made
        news = [self._output(output) for output in outputs if output.stage == self._stage and not self._ends(output)]
        if not news:
            return None
        self.finished = not self._left
        if self._delta:
            made = self._sum(news) if len(news) > 1 else news[0]
        elif self._final and not self.finished:
            self._grow(news)
            return None
        else:
            self._grow(news)
            made = self._snapshot({choice.index for new in news for choice in new.outputs})
        made.finished = self.finished
        if self._base is not None:
            made.prompt = self._base.prompt  # one that comes in pieces grows
        return made

    def _plain(self, outputs: Sequence[Output]) -> Any:
        """New text of one choice in the middle of it, which is most of what there is, the quick way; else None."""
        text, tokens, index = "", [], -1
        for output in outputs:
            chunk: TextChunk = output.payload  # type: ignore[assignment]
            if output.stage != self._stage or chunk.native is not None or chunk.finish_reason is not None:
                return None
            if chunk.logprobs is not None:
                return None
            if index == -1:
                index, text, tokens = output.index, chunk.text, chunk.token_ids
            elif index == output.index:
                text, tokens = text + chunk.text, tokens + chunk.token_ids
            else:
                return None
        return None if index == -1 else self._bare([CompletionOutput(index, text, tokens, None, None)])

    def _ends(self, output: Output) -> bool:
        """Whether it is an end and nothing more: of input in pieces, when all that was given has been answered."""
        chunk: TextChunk = output.payload  # type: ignore[assignment]
        if chunk.native is not None or chunk.finish_reason is None or chunk.token_ids:
            return False
        self._left.discard(output.index)
        return True

    def abort(self, outputs: Sequence[Output]) -> Any:
        """The end of an aborted request: what was not read yet, and ``abort`` where a choice had not ended."""
        news = [self._output(output) for output in outputs if output.stage == self._stage]
        left, self._left = sorted(self._left), set()
        news += [self._bare([CompletionOutput(index, "", [], None, None)]) for index in left]
        self.finished = True
        if self._delta:
            made = self._sum(news)
        else:
            self._grow(news)
            made = self._snapshot({choice.index for new in news for choice in new.outputs})
        for choice in made.outputs:
            if choice.index in left:
                choice.finish_reason = "abort"
        made.finished = True
        return made

    # ------------------------------------------------------------------ one output

    def _output(self, output: Output) -> Any:
        chunk: TextChunk = output.payload  # type: ignore[assignment]
        if chunk.finish_reason is not None:
            self._left.discard(output.index)
        native = chunk.native
        if isinstance(native, RequestOutput):
            self._base = native
            native.request_id = self._id
            if native.prompt is None:
                native.prompt = self._prompt
            native.finished = False
            return native
        choice = CompletionOutput(
            output.index,
            chunk.text,
            chunk.token_ids,
            None,
            chunk.logprobs,
            finish_reason=chunk.finish_reason,
            stop_reason=chunk.stop_reason,
        )
        return self._bare([choice])

    def _bare(self, choices: list[Any]) -> Any:
        base = self._base
        if base is None:
            return RequestOutput(self._id, self._prompt, self._tokens, None, choices, False)
        return RequestOutput(
            self._id,
            base.prompt,
            base.prompt_token_ids,
            None,
            choices,
            False,
            base.metrics,
            base.lora_request,
            num_cached_tokens=base.num_cached_tokens,
            num_cache_creation_tokens=getattr(base, "num_cache_creation_tokens", None),
        )

    # ------------------------------------------------------------------ several

    def _sum(self, news: list[Any]) -> Any:
        first = news[0]
        for new in news[1:]:
            _add(first, new)
        return first

    def _grow(self, news: list[Any]) -> None:
        if self._whole is None:
            self._whole, news = news[0], news[1:]
        for new in news:
            _add(self._whole, new)

    def _snapshot(self, changed: set[int]) -> Any:
        """What there is now, of the choices that changed; FINAL_ONLY: of all. vLLM's own objects go on growing."""
        whole = self._whole
        made = copy.copy(whole)
        choices = [choice for choice in whole.outputs if self._final or choice.index in changed]
        made.outputs = [_frozen(choice) for choice in sorted(choices, key=lambda choice: choice.index)]
        return made


def _add(whole: Any, new: Any) -> None:
    """vLLM's own sum. It takes an output without a value for "no more of it", we for "nothing new"."""
    for choice in whole.outputs:
        for more in new.outputs:
            if choice.index == more.index and more.cumulative_logprob is None:
                more.cumulative_logprob = choice.cumulative_logprob
    whole.add(new, aggregate=True)


def _frozen(choice: Any) -> Any:
    frozen = copy.copy(choice)
    frozen.token_ids = list(choice.token_ids)
    return frozen
