"""The thinker's tokenizer: it reads words and writes letters.

A question becomes whole words, lower case, each with the space before it (``▁what ▁is ▁two ▁plus ▁three ?``). An
answer is written letter by letter (``T w o ▁ p l u s …``), so that it can be followed while it is being thought. The
two sets of tokens do not overlap but for the marks. A letter carries no space and the space is a letter, so decoding
is concatenation: text decoded token by token (as vLLM streams it) and text decoded at once are the same bytes.
The normalizer lets people write ``What's 2+3?``; the model only ever sees words.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from omni_actors.pipelines.tiny_omni._questions import NUMBERS, all_parts, draw

if TYPE_CHECKING:
    from pathlib import Path

SPECIALS = ("<pad>", "<bos>", "<eos>", "<user>", "<assistant>", "<unk>")
PAD, BOS, EOS, USER, ASSISTANT, UNKNOWN = range(len(SPECIALS))
MARKS = ".,;:?"

CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'user' %}<user>{{ m['content'] | trim }}"
    "{% elif m['role'] == 'assistant' %}<assistant>{{ m['content'] | trim }}<eos>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def build_vocabulary() -> dict[str, int]:
    """Every word of a question and every letter of an answer that the grammar can produce, in a stable order."""
    letters = {letter for part in all_parts() for letter in part.sentence} - {*MARKS, " "}
    splitter, rng = _untrained(), random.Random(0)
    words: set[str] = set()
    for _ in range(20_000):
        normal = splitter.normalizer.normalize_str(draw(rng).text)
        words.update(word for word, _ in splitter.pre_tokenizer.pre_tokenize_str(normal))
    return {piece: i for i, piece in enumerate([*SPECIALS, *MARKS, "▁", *sorted(letters), *sorted(words - set(MARKS))])}


def build_tokenizer(vocab: dict[str, int], context: int) -> PreTrainedTokenizerFast:
    core = _untrained()
    core.model = models.WordLevel(vocab, unk_token="<unk>")
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    core.add_special_tokens(list(SPECIALS))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """As files that any transformers from 4.50 on reads: newer ones write a class name that older ones don't know."""
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.pop("backend", None)
    file.write_text(json.dumps(settings, indent=2) + "\n")


def _untrained() -> Tokenizer:
    """How text is cut into words, before any of them has a number."""
    core = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    core.normalizer = _normalizer()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="always"), pre_tokenizers.Punctuation("isolated")]
    )
    return core


def _normalizer() -> normalizers.Normalizer:
    digits = [normalizers.Replace(Regex(rf"\b{n}\b"), word) for n, word in enumerate(NUMBERS)]
    spaced = [normalizers.Replace(mark, f"{mark} ") for mark in MARKS]
    return normalizers.Sequence(
        [
            normalizers.Lowercase(),
            normalizers.Replace(Regex("['\u2019]s\\b"), " is"),
            normalizers.Replace("+", " plus "),
            normalizers.Replace(Regex("[-\u2212\u2013]"), " minus "),
            *digits,
            normalizers.Replace("!", "."),
            *spaced,
            normalizers.Replace(Regex(r"\s+(?=[?.,;:])"), ""),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    )
