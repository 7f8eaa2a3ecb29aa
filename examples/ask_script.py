"""A batch without any event loop, one of its prompts a bad one: ``python examples/ask_script.py``"""

import sys

from omni_actors_asyncio import Omni

from omni_actors import OmniError

QUESTIONS = ["What is two plus three?", "", "What is nine minus four?", "What is one plus one, and two plus two?"]


def main() -> None:
    # Ctrl-C aborts what is running and stops every engine. In a notebook, leave the "with" out and close at the end.
    with Omni("tiny-omni") as omni:
        for question, answer in zip(QUESTIONS, omni.generate(QUESTIONS, timeout_s=60), strict=True):
            if isinstance(answer, OmniError):  # one bad prompt is one error in the list
                print(f"{question!r}: {answer}")
                continue
            pieces = [piece for result in answer.results["vocoder"] for piece in result.tensors["audio"]]
            rate = answer.results["vocoder"][0].meta["sample_rate"]
            seconds = sum(piece.shape[0] for piece in pieces) / rate
            print(f"{question} {answer.text()} ({seconds:.1f} s of speech)")
        (short,) = omni.generate(QUESTIONS[0], {"thinker": {"max_tokens": 3}}, modalities=["text"])
        print(f"In three tokens: {short.text()!r}")


if __name__ == "__main__":
    try:
        main()
    except OmniError as error:
        sys.exit(str(error))
