"""Ask the tiny-omni pipeline, hear the answer and see it: ``python examples/ask.py "What is two plus three?"``"""

import sys
import wave

import trio
from PIL import Image

from omni_actors import OmniError, open_omni


async def main(question: str) -> None:
    audio = bytearray()
    async with open_omni("tiny-omni") as omni:
        # Leaving this block, for whatever reason, aborts the request in every engine.
        async with omni.generate(question, timeout_s=30) as stream:
            async for output in stream:
                if output.modality == "text":
                    print(output.text, end="", flush=True)
                elif output.image is not None:  # one for each sentence
                    Image.fromarray(output.image.numpy()).save(f"answer-{output.part + 1}.png")
                else:
                    audio += (output.audio.numpy() * 32767).astype("<i2").tobytes()
                    rate = output.sample_rate
        print(f"\n{stream.terminal.kind.value} in {stream.terminal.at - stream.terminal.submitted_at:.2f} s")
    with wave.open("answer.wav", "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(audio)
    print(f"answer.wav: {len(audio) / 2 / rate:.1f} s; engines stopped: {', '.join(omni.shutdown_report.stopped)}")


if __name__ == "__main__":
    try:
        trio.run(main, " ".join(sys.argv[1:]) or "What is two plus three, and nine minus four?")
    except OmniError as error:
        sys.exit(str(error))
