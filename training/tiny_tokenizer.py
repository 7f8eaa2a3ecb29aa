"""The thinker's tokenizer: whole words, each with the space before it, as in ``Two ▁plus ▁three ▁is ▁five .``

Because a space belongs to the word after it, and the first word of an answer has none, decoding is concatenation:
text decoded token by token (as vLLM streams it) and text decoded at once are the same bytes.
The normalizer lets people write ``What's 2+3?``; the model only ever sees words.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from omni_actors.pipelines.tiny_omni._questions import NUMBERS, all_parts, draw
from omni_actors.pipelines.tiny_omni._vocabulary import pieces

if TYPE_CHECKING:
    from pathlib import Path

SPECIALS = ("<pad>", "<bos>", "<eos>", "<user>", "<assistant>", "<unk>")
PAD, BOS, EOS, USER, ASSISTANT, UNKNOWN = range(len(SPECIALS))

CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'user' %}<user>{{ m['content'] | trim }}"
    "{% elif m['role'] == 'assistant' %}<assistant>{{ m['content'] | trim }}<eos>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def build_vocabulary() -> dict[str, int]:
    """Every piece that the grammar of questions and answers can produce, in a stable order."""
    found = {piece for part in all_parts() for piece in pieces(f"{part.sentence} {part.sentence}")}
    rng = random.Random(0)
    for _ in range(20_000):
        found.update(pieces(draw(rng).text))
    return {piece: i for i, piece in enumerate([*SPECIALS, *sorted(found)])}


def build_tokenizer(vocab: dict[str, int], context: int) -> PreTrainedTokenizerFast:
    """The same splitting as ``_vocabulary.pieces``, in the library's own terms."""
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.normalizer = _normalizer()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="never"), pre_tokenizers.Punctuation("isolated")]
    )
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


def _normalizer() -> normalizers.Normalizer:
    digits = [normalizers.Replace(Regex(rf"\b{n}\b"), word) for n, word in enumerate(NUMBERS)]
    return normalizers.Sequence(
        [
            normalizers.Replace(Regex("['\u2019]s\\b"), " is"),
            normalizers.Replace("+", " plus "),
            normalizers.Replace(Regex("[-\u2212\u2013]"), " minus "),
            *digits,
            normalizers.Replace("!", "."),
            normalizers.Replace(Regex(r"\s+(?=[?.,])"), ""),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    )
