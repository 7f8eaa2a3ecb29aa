"""A listener that nobody trained for this: pocketsphinx hears what was said, so that speech can be marked.

Its grammar knows the shape of a sentence (``<number> plus|minus <number> is <number>``, any of 19 numbers in each
place) and nothing of arithmetic: it has no reason to prefer a right sum over a wrong one.
Needs the ``demo`` extra. Owns one decoder; not thread-safe; deterministic: each sentence starts from the same state.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from omni_actors._errors import UsageError
from omni_actors.pipelines.tiny_omni._questions import NUMBERS, Part

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Judge"]

_HEARS_HZ = 16_000
_GRAMMAR = f"""#JSGF V1.0;
grammar sums;
public <sentence> = <number> (plus | minus) <number> is <number>;
<number> = {" | ".join(NUMBERS)};
"""


class Judge:
    """Hears one sentence at a time. Loading takes about half a second; hearing, a few hundredths of the audio's length.

    Raises UsageError if pocketsphinx or soxr is not installed.
    """

    def __init__(self) -> None:
        sphinx, self._soxr = _need("pocketsphinx"), _need("soxr")
        self._decoder = sphinx.Decoder(samprate=_HEARS_HZ, lm=None, loglevel="FATAL")
        self._decoder.add_jsgf_string("sums", _GRAMMAR)
        self._decoder.activate_search("sums")

    def hear(self, samples: Any, sample_rate: int) -> str:
        """The words of one sentence, lower case, without punctuation; empty if nothing was recognised.

        ``samples``: float32 in [-1, 1], shape (samples,); ``sample_rate`` in Hz.
        """
        import numpy as np

        resampled = self._soxr.resample(np.asarray(samples, np.float32), sample_rate, _HEARS_HZ)
        pcm = (np.clip(resampled, -1.0, 1.0) * 32767).astype("<i2").tobytes()
        if not pcm:
            return ""
        self._decoder.reinit_feat()  # forget the running cepstral mean of earlier sentences
        self._decoder.start_utt()
        self._decoder.process_raw(pcm, full_utt=True)
        self._decoder.end_utt()
        heard = self._decoder.hyp()
        return heard.hypstr if heard else ""

    def heard_right(self, parts: Sequence[Part], sentences: Sequence[Any], sample_rate: int) -> list[bool]:
        """For each part asked, whether its spoken sentence was heard as the right sum; a missing sentence is wrong."""
        heard = [self.hear(samples, sample_rate) for samples in sentences]
        heard += [""] * (len(parts) - len(heard))
        return [words == said(part) for part, words in zip(parts, heard, strict=False)]


def said(part: Part) -> str:
    """``two plus three is five``: what the judge should hear."""
    return part.sentence.lower().rstrip(".")


def _need(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise UsageError(f"{module} is not installed: pip install 'omni-actors[demo]'") from missing
