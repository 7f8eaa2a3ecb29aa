"""The last stage: phoneme ids become sound, by hibari's acoustic network and its signal processing.

Runs in a GenerationEngine's process; only there are hibari, onnxruntime and numpy imported. One sentence is one pass
through the network (10 ms) and one synthesis (10 ms), so its samples exist at once; they leave in pieces, so that
an abort can take effect between two of them and no frame is large. Owns one network session; deterministic by seed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omni_actors._errors import InvalidRequest, UsageError
from omni_actors.engines._generator import Chunk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from omni_actors.engines._generator import Item

__all__ = ["SAMPLE_RATE", "Vocoder"]

SAMPLE_RATE = 24_000
"""Samples per second."""

MAX_PHONEMES = 400
"""The longest sentence that the network was made for."""

_SENTENCE_EDGE = 0


class Vocoder:
    """Speaks phoneme ids with one voice.

    ``voice``: one of hibari's (``heart`` is in its package; others it would download). ``seed`` fixes the noise: the
    same ids give the same samples. ``piece_s``: seconds of sound per chunk.
    Raises UsageError if hibari is not installed.
    """

    def __init__(self, voice: str = "heart", seed: int = 0, piece_s: float = 0.4) -> None:
        self._tts = _hibari().Hibari(voice=voice, threads=1)
        self._known = frozenset(self._tts.vocab.values())
        self._seed = seed
        self._piece = max(1, round(piece_s * SAMPLE_RATE))
        self.synthesize(list(self._known)[:8])  # the first run allocates and is ten times slower

    def synthesize(self, phonemes: Sequence[int], seed: int | None = None) -> Any:
        """float32 samples in [-1, 1] at 24 kHz, shape (samples,). Raises InvalidRequest for ids it has no sound for."""
        import numpy as np

        if not phonemes or len(phonemes) > MAX_PHONEMES:
            raise InvalidRequest(f"a sentence has 1 to {MAX_PHONEMES} phonemes, not {len(phonemes)}")
        if unknown := [phoneme for phoneme in phonemes if phoneme not in self._known]:
            raise InvalidRequest(f"no such phoneme: {unknown[0]!r}")
        noise = np.random.default_rng(self._seed if seed is None else seed)
        ids = [_SENTENCE_EDGE, *phonemes, _SENTENCE_EDGE]
        samples = self._tts.from_ids(ids, rng=noise)
        return np.clip(samples, -1.0, 1.0).astype(np.float32, copy=False)

    def start(self, item: Item) -> Iterator[Chunk]:
        """The sentence ``{"phonemes": [ids]}`` in chunks of ``piece_s``: ``audio``, float32 (samples,), and its rate.

        ``params``: ``seed`` (another noise). Sample ``index`` of several is seeded one further each.
        """
        if not isinstance(item.prompt, Mapping) or "phonemes" not in item.prompt:
            raise InvalidRequest('the vocoder takes {"phonemes": [ids]}')
        return self._chunks(item.prompt["phonemes"], item.params.get("seed", self._seed) + item.index)

    def _chunks(self, phonemes: Sequence[int], seed: int) -> Iterator[Chunk]:
        samples = self.synthesize(phonemes, seed)
        for begin in range(0, len(samples), self._piece):
            end = begin + self._piece
            last = end >= len(samples)
            yield Chunk(
                tensors={"audio": samples[begin:end]},
                meta={"sample_rate": SAMPLE_RATE},
                finished=last,
                finish_reason="stop" if last else None,
            )


def _hibari() -> Any:
    try:
        return importlib.import_module("hibari")
    except ImportError as missing:
        raise UsageError("hibari-tts is not installed: pip install 'omni-actors[demo]'") from missing
