"""tiny-omni: four small engines that answer sums in text, speech and pictures. The graph, and what lies between stages.

::

    question ─ think ─► thinker ──► text
                           │ sentence by sentence
                           ├─ speak ─► talker ─ voice ─► vocoder ──► audio
                           └─ paint ─► painter ──► image

The thinker (a 0.5 M parameter Qwen3) answers letter by letter; each finished sentence goes to the talker (another) as
words and comes back as pieces of up to five sounds; the vocoder makes them audible. The painter gets it too, and paints
the number that it ends with, in handwritten digits. A sentence is about 24 tokens to think but 8 to say: the alphabets
are chosen so, and the first one is heard while the next is being thought.
On few cores the later stages give way to the earlier ones (``nice``), the painter most: speech is waited for.
The functions here are pure and take microseconds. This module imports no engine's library: it is loaded by the host.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

from omni_actors._errors import InvalidRequest
from omni_actors.config.specs import InputSpec, PipelineSpec, StageSpec

from ._questions import number_of
from ._vocabulary import WEIGHTS, alphabet, words_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["paint", "pipeline", "sentences", "speak", "think", "voice"]

_HERE = "omni_actors.pipelines.tiny_omni"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")

_THINKER_CONTEXT, _TALKER_CONTEXT = 256, 128
"""Tokens that each model was made for: the longest question takes 60 and its answer 120; a sentence takes 20."""

_SMALL_ENGINE: Mapping[str, Any] = {
    "dtype": "float32",
    "max_num_seqs": 64,
    "enforce_eager": True,
    "distributed_executor_backend": "uni",
    "kv_cache_memory_bytes": 64 << 20,
    "gpu_memory_utilization": 0.2,  # both fit on one device; on a CPU the line above is what counts
}
_SMALL_ENV: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",  # or the first request for logprobs makes everybody wait for a compiler
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # with "uni" above: the model runs in the engine's own process
}


class Upstream(Protocol):
    """What a transform reads of a producer's result (see ``lifecycle``)."""

    @property
    def text(self) -> str: ...

    @property
    def token_ids(self) -> Sequence[int]: ...


class Request(Protocol):
    """What a transform reads of the user's request."""

    @property
    def prompt(self) -> Any: ...


def pipeline() -> PipelineSpec:
    """The four stages, with the weights that ship in the package."""
    return PipelineSpec(
        name="tiny-omni",
        description="Answers sums of digits in text, speech and pictures: four small engines on any CPU.",
        stages=(_thinker(), _talker(), _vocoder(), _painter()),
    )


def _thinker() -> StageSpec:
    return StageSpec(
        name="thinker",
        engine="vllm",
        model=str(WEIGHTS / "thinker"),
        engine_args={**_SMALL_ENGINE, "max_model_len": _THINKER_CONTEXT},
        env=_SMALL_ENV,
        transform=f"{_HERE}:think",
        output="text",
        params={"temperature": 0.0, "max_tokens": 128},
    )


def _talker() -> StageSpec:
    return StageSpec(
        name="talker",
        engine="vllm",
        model=str(WEIGHTS / "talker"),
        engine_args={**_SMALL_ENGINE, "max_model_len": _TALKER_CONTEXT, "skip_tokenizer_init": True},
        env=_SMALL_ENV,
        nice=5,
        inputs=(InputSpec(stage="thinker", mode="segments", split=f"{_HERE}:sentences"),),
        transform=f"{_HERE}:speak",
        params={"temperature": 0.0, "max_tokens": 32},
        fixed_params={"detokenize": False, "stop_token_ids": [alphabet().end_audio]},
    )


def _vocoder() -> StageSpec:
    return StageSpec(
        name="vocoder",
        engine="generation",
        model=f"{_HERE}.vocoder:Vocoder",
        engine_args={"voice": "heart", "seed": 0, "max_batch": 8},
        env={"OMP_NUM_THREADS": "1"},
        nice=5,
        inputs=(InputSpec(stage="talker"),),
        transform=f"{_HERE}:voice",
        output="audio",
    )


def _painter() -> StageSpec:
    return StageSpec(
        name="painter",
        engine="diffusion",
        model=str(WEIGHTS / "painter"),
        engine_args={"pipeline_class": f"{_HERE}.painter:DigitPainter", "dtype": "float32", "max_batch": 8},
        env={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        nice=15,
        inputs=(InputSpec(stage="thinker", mode="segments", split=f"{_HERE}:sentences"),),
        transform=f"{_HERE}:paint",
        output="image",
        params={"num_inference_steps": 10, "guidance_scale": 2.0, "seed": 0},
    )


def think(upstream: Mapping[str, Upstream], request: Request) -> Any:
    """A question as a chat message. Anything that is not text (messages, token ids) is a prompt already.

    Raises InvalidRequest for a blank question.
    """
    question = request.prompt
    if not isinstance(question, str):
        return question
    if not question.strip():
        raise InvalidRequest("the question is empty")
    return [{"role": "user", "content": question}]


def speak(upstream: Mapping[str, Upstream], request: Request) -> dict[str, list[int]]:
    """One sentence as the talker's prompt: its words, then the mark after which sounds follow."""
    return {"prompt_token_ids": alphabet().read(upstream["thinker"].text)}


def voice(upstream: Mapping[str, Upstream], request: Request) -> dict[str, list[int]]:
    """The talker's pieces, spelled out in the vocoder's phonemes."""
    return {"phonemes": alphabet().spoken(upstream["talker"].token_ids)}


def paint(upstream: Mapping[str, Upstream], request: Request) -> dict[str, int | None]:
    """The number that a sentence ends with, in words or digits; None, a digit of no certain kind, if it has none."""
    numbers = map(number_of, reversed(words_of(upstream["thinker"].text)))
    return {"number": next((number for number in numbers if number is not None), None)}


def sentences(text: str, finished: bool) -> tuple[list[str], str]:
    """Cut complete sentences off the front of ``text``; returns them and the rest.

    A sentence is complete once white space follows its mark, so the result does not depend on how the text was cut
    into pieces on its way here. ``finished``: nothing follows, so the rest, unless blank, is the last sentence.
    """
    *complete, rest = _SENTENCE_END.split(text)
    if finished:
        complete, rest = [*complete, rest], ""
    return [sentence for piece in complete if (sentence := piece.strip())], rest
