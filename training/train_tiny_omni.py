"""Train the two language models of tiny-omni: the thinker (question → sentences) and the talker (sentence → phonemes).

    python training/train_tiny_omni.py                 # both, into the package's weights folder
    python training/train_tiny_omni.py --check         # no training: print the quality of the weights that are there

Seeded, one thread, a fixed number of steps: the same versions of torch on the same kind of CPU give the same weights.
Quality is measured on the stored bf16 weights, computed in float32, which is how vLLM serves them.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import attrs
import tiny_model
from hibari import Hibari
from rich import print
from tiny_data import TalkerData, ThinkerData, readable_sentences, talker_holdout
from tiny_pieces import make_alphabet
from tiny_tokenizer import BOS, EOS, PAD, build_tokenizer, build_vocabulary, save_tokenizer

from omni_actors.pipelines.tiny_omni._questions import BENCH_SEED, Question, all_parts, questions
from omni_actors.pipelines.tiny_omni._vocabulary import WEIGHTS

THINKER_STEPS, TALKER_STEPS = 2_400, 800
THINKER_CONTEXT, TALKER_CONTEXT = 256, 128


@dataclass(frozen=True)
class Score:
    name: str
    right: int
    of: int

    def __str__(self) -> str:
        return f"{self.name}: {self.right}/{self.of} exact ({self.right / self.of:.2%})"


# -- thinker -----------------------------------------------------------------------------------------------------------


def thinker_data(seed: int) -> ThinkerData:
    return ThinkerData(build_tokenizer(build_vocabulary(), THINKER_CONTEXT), random.Random(seed))


def train_thinker(folder: Path, seed: int, steps: int) -> None:
    data = thinker_data(seed)
    tiny_model.deterministic(seed)
    model = tiny_model.make_model(len(data.tokenizer), THINKER_CONTEXT, bos=BOS, eos=EOS, pad=PAD)
    tiny_model.train(model, data, steps, "thinker")
    tiny_model.save(model, folder)
    save_tokenizer(data.tokenizer, folder)


def thinker_scores(folder: Path) -> list[Score]:
    model, data = tiny_model.load(folder), thinker_data(0)
    singles = [Question((part,), f"What is {part.words}?") for part in all_parts()]
    unseen = [q for q in questions(6_000, seed=77) if data.holdout.touches(q)]
    solo = [q for q in unseen if not data.holdout.solo.isdisjoint(q.parts)]
    sets = {
        "all 155 single questions": singles,
        **{f"{n}-part questions": questions(250, seed=1_000 + n, parts=n) for n in (1, 2, 3, 4)},
        "the benchmark's first 100 (many-part ones never trained on)": questions(100, BENCH_SEED),
        "held-out neighbours": [q for q in unseen if q not in solo][:500],
        "held-out operands in many-part questions": solo[:500],
    }
    return [Score(name, *_right(model, data, asked)) for name, asked in sets.items()]


def _right(model, data, asked: list) -> tuple[int, int]:
    examples = [data.example(item) for item in asked]
    made = tiny_model.answer(model, [prompt for prompt, _ in examples], max_tokens=128)
    return sum(got == wanted[:-1] for got, (_, wanted) in zip(made, examples, strict=True)), len(asked)


# -- talker ----------------------------------------------------------------------------------------------------------


def talker_data(seed: int) -> TalkerData:
    hibari = Hibari()
    speech = {s: hibari.ids(" ".join(hibari.phonemize(s)))[1:-1] for s in readable_sentences()}
    return TalkerData(*make_alphabet(speech, hibari.vocab), random.Random(seed))


def train_talker(folder: Path, seed: int, steps: int) -> None:
    data = talker_data(seed)
    tiny_model.deterministic(seed)
    marks = data.alphabet
    model = tiny_model.make_model(
        marks.end_audio + 1, TALKER_CONTEXT, bos=marks.begin_audio, eos=marks.end_audio, pad=PAD
    )
    tiny_model.train(model, data, steps, "talker")
    tiny_model.save(model, folder)
    (folder / "alphabet.json").write_text(json.dumps(attrs.asdict(marks)) + "\n")


def talker_scores(folder: Path) -> list[Score]:
    model, data = tiny_model.load(folder), talker_data(0)
    true = [part.sentence for part in all_parts()]
    unseen = [part.sentence for part in talker_holdout()]
    sets = {"all 155 sentences": true, "the 16 of them whose operands were held out": unseen}
    return [Score(name, *_right(model, data, read)) for name, read in sets.items()]


# -- main ------------------------------------------------------------------------------------------------------------


def main() -> None:
    options = _options()
    jobs = {
        "thinker": (train_thinker, thinker_scores, THINKER_STEPS),
        "talker": (train_talker, talker_scores, TALKER_STEPS),
    }
    for name in jobs if options.which == "both" else [options.which]:
        train, scores, steps = jobs[name]
        folder = options.out / name
        if not options.check:
            shutil.rmtree(folder, ignore_errors=True)
            train(folder, options.seed, options.steps or steps)
        for score in scores(folder):
            print(f"{name}: {score}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--which", choices=["thinker", "talker", "both"], default="both")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="the folder that gets thinker/ and talker/")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="other than the usual number: for a quick try")
    parser.add_argument("--check", action="store_true", help="print the quality of the stored weights, train nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
