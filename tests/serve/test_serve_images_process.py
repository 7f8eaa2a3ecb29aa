"""Pictures by a real server with a painter in a process of its own: the openai SDK, who leaves, who asks nonsense.

The painter is ``picture_classes.Counting``: what it was at work on stands in a file.
"""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import openai
import pytest
from omni_actors_asyncio.server import HttpLimits
from PIL import Image

from omni_actors.testing.rigs import omni_stage, pipeline

from .fake_pipeline import holds, idle
from .fuzz import fuzz
from .server_process import ServerProcess
from .test_serve_gate import NOT_JSON
from .test_serve_images import EDITS, IMAGES

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]

STEP_S = 0.02
_STAGES = """
name: counting
stages:
  - name: painter
    engine: diffusion
    model: picture_classes:Counting
    output: image
    engine_args: {{step_s: {step_s}, log: {log}, max_batch: 4}}
    params: {{num_inference_steps: 6}}
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("counting") / "log"


@pytest.fixture(scope="module")
def server(log) -> Iterator[ServerProcess]:
    file = log.with_name("counting.yaml")
    file.write_text(_STAGES.format(step_s=STEP_S, log=log))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        server = ServerProcess(pipeline=str(file), overrides=())
    with server.until_stopped(), server.client() as http:
        yield server
        assert http.get("/ready").json()["ready"] is True
        holds(http, idle, 1)


@pytest.fixture
def sdk(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def counting(**args):
    """Counting alone, and nothing said of its steps."""
    painter = omni_stage("painter", output="image", **args)
    return pipeline(attrs.evolve(painter, engine="diffusion", model="picture_classes:Counting"))


def opened(data):
    picture = Image.open(io.BytesIO(base64.b64decode(data)))
    picture.load()
    return picture


def png(colour, size=(16, 8), mode="RGB"):
    file = io.BytesIO()
    Image.new(mode, size, colour).save(file, "PNG")
    return ("picture.png", file.getvalue())


def steps_of(log, prompt):
    return log.read_text().split("\n").count(prompt)


# ---------------------------------------------------------------------- the SDK


def test_two_pictures_are_two_different_ones(sdk):
    answer = sdk.images.generate(
        model="counting", prompt="a cup", n=2, size="24x8", quality="high", extra_body={"seed": 41}
    )
    first, second = [opened(made.b64_json) for made in answer.data]
    assert (first.size, first.getpixel((0, 0)), second.getpixel((0, 0))) == ((24, 8), (41,) * 3, (42,) * 3)
    assert [made.seed for made in answer.data] == [41, 42]
    assert (answer.size, answer.quality, answer.output_format) == ("24x8", "high", "png")


@pytest.mark.parametrize(("quality", "steps"), [("low", 3), ("auto", 6), ("hd", 9)])
def test_a_quality_is_a_number_of_steps(sdk, log, quality, steps):
    sdk.images.generate(model="counting", prompt=f"in {quality}", quality=quality)
    assert steps_of(log, f"in {quality}") == steps


def test_a_stream_shows_what_it_will_be(sdk):
    stream = sdk.images.generate(
        model="counting", prompt="a cup", stream=True, partial_images=2, output_format="webp", extra_body={"seed": 9}
    )
    *partial, completed = list(stream)
    assert [event.type for event in partial] == ["image_generation.partial_image"] * 2
    assert [event.partial_image_index for event in partial] == [0, 1]
    assert [opened(event.b64_json).getpixel((0, 0))[0] for event in partial] == pytest.approx([2, 4], abs=1)  # of 6
    assert completed.type == "image_generation.completed"
    assert isinstance(completed, openai.types.ImageGenCompletedEvent)
    assert opened(completed.b64_json).format == "WEBP"
    assert (completed.size, completed.output_format, completed.quality) == ("16x8", "webp", "auto")
    assert (completed.part, completed.index, completed.seed) == (0, 0, 9)
    assert completed.usage.total_tokens == 0


def test_steps_are_comments_in_the_stream(http):
    with http.stream("POST", IMAGES, json={"prompt": "a", "stream": True}) as answer:
        lines = [line.removeprefix(": progress ") for line in answer.iter_lines() if line.startswith(":")]
    news = [json.loads(line) for line in lines]
    assert [step["done"] for step in news] == [1, 2, 3, 4, 5]
    assert news[0] == {"stage": "painter", "part": 0, "index": 0, "done": 1, "total": 6, "eta_s": 0.5}


def test_an_edit_paints_what_the_mask_lets_through(sdk):
    plain = sdk.images.edit(model="counting", image=png((200, 10, 20)), prompt="more", n=1, size="auto")
    assert opened(plain.data[0].b64_json).getpixel((0, 0)) == (200, 10, 20)
    two = sdk.images.edit(model="counting", image=[png("red"), png("blue")], prompt="both", extra_body={"seed": 3})
    assert [opened(two.data[0].b64_json).getpixel((x, 0)) for x in (0, 31)] == [(255, 0, 0), (0, 0, 255)]
    mask = Image.new("RGBA", (16, 8), (0, 0, 0, 255))
    mask.paste((0, 0, 0, 0), (8, 0, 16, 8))  # the right half is transparent: to be painted anew
    file = io.BytesIO()
    mask.save(file, "PNG")
    for given in (("m.png", file.getvalue()), _white_is_anew()):
        made = opened(sdk.images.edit(image=png("white"), mask=given, prompt="half").data[0].b64_json)
        assert [made.getpixel((x, 0)) for x in (7, 8)] == [(255,) * 3, (0,) * 3]


def _white_is_anew():
    mask = Image.new("L", (16, 8))
    mask.paste(255, (8, 0, 16, 8))
    file = io.BytesIO()
    mask.save(file, "PNG")
    return "m.png", file.getvalue()


def test_an_edit_can_be_watched_too(sdk):
    events = list(sdk.images.edit(image=png("red"), prompt="watched", stream=True, partial_images=1))
    assert [event.type for event in events] == ["image_edit.partial_image", "image_edit.completed"]
    assert isinstance(events[-1], openai.types.ImageEditCompletedEvent)


def test_a_chat_with_a_painter_shows_its_picture(sdk):
    chat = {"model": "counting", "messages": [{"role": "user", "content": "tea"}]}
    answer = sdk.chat.completions.create(**chat, extra_body={"modalities": ["image"], "image": {"seed": 5}})
    (part,) = answer.choices[0].message.images
    assert opened(part["image_url"]["url"].partition(",")[2]).getpixel((0, 0)) == (5,) * 3
    chunks = list(sdk.chat.completions.create(**chat, stream=True))  # what it makes, since it makes no text
    (images,) = [chunk.choices[0].delta.images for chunk in chunks if hasattr(chunk.choices[0].delta, "images")]
    assert images[0]["image_url"]["url"].startswith("data:image/png;base64,")


# ---------------------------------------------------------------------- leaving, stopping, failing


def test_who_leaves_costs_two_steps_at_most(http, log):
    asked = {"prompt": "who leaves", "num_inference_steps": 400, "stream": True}
    with http.stream("POST", IMAGES, json=asked) as answer:
        line = next(line for line in answer.iter_lines() if line.startswith(":"))
        done = json.loads(line.removeprefix(": progress "))["done"]
    left_at = steps_of(log, "who leaves")
    holds(http, idle, 2)
    walked = steps_of(log, "who leaves")
    assert left_at <= walked <= max(left_at, done) + 2
    http.post(IMAGES, json={"prompt": "after"}).raise_for_status()
    assert steps_of(log, "who leaves") == walked


def test_who_leaves_without_a_stream_costs_as_little(server, http, log):
    with (
        pytest.raises(openai.APITimeoutError),
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=0.5) as impatient,
    ):
        impatient.images.generate(prompt="who is impatient", extra_body={"num_inference_steps": 400})
    left_at = steps_of(log, "who is impatient")
    holds(http, idle, 2)
    assert 0 < left_at <= steps_of(log, "who is impatient") <= left_at + 2


def test_an_abort_from_elsewhere_ends_it(http):
    asked = {"prompt": "a", "num_inference_steps": 400, "stream": True}
    with http.stream("POST", IMAGES, json=asked, headers={"x-request-id": "mine"}) as answer:
        lines = answer.iter_lines()
        next(lines)
        report = http.post("/v1/omni/abort", json={"request_id": "mine"}).json()
        last = [line.removeprefix("data: ") for line in lines if line.startswith("data:")]
    assert (report["known"], report["unconfirmed"], report["ended"][0]["kind"]) == (True, [], "aborted")
    assert json.loads(last[0])["error"]["code"] == 409
    assert last[1] == "[DONE]"


def test_a_picture_has_the_time_that_the_server_gives(serving, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    async def story(served):
        answer = await served.post(IMAGES, {"prompt": "slow", "num_inference_steps": 400})
        assert await served.idle_within(2)
        return answer

    assert serving(counting(step_s=STEP_S), story, real=True, limits=HttpLimits(request_s=0.5)).status_code == 504


def test_more_steps_than_were_assumed_show_no_more_pictures(serving, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    async def story(served):
        return await served.post(IMAGES, {"prompt": "a", "stream": True, "partial_images": 1})

    told = serving(counting(usual_steps=70), story, real=True).text
    assert told.count("image_generation.partial_image") == 1


def test_one_failure_is_nobody_elses(http):
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(http.post, IMAGES, json={"prompt": "another", "num_inference_steps": 30})
        answer = http.post(IMAGES, json={"prompt": "nan"})
        assert other.result().status_code == 200
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert error["message"] == "the server failed at this request"
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_inference_steps": 0}, "1 to 400"),
        ({"num_inference_steps": 1_000_000}, "1 to 400"),
        ({"size": "20x8"}, "multiple of 8"),
        ({"prompt": "x" * 300}, "too long"),
    ],
)
def test_what_the_painter_refuses_is_said_in_its_words(http, sdk, changes, words):
    for stream in (False, True):
        answer = http.post(IMAGES, json={"prompt": "a", "stream": stream} | changes)
        assert answer.status_code == 400, answer.text
        assert words in answer.json()["error"]["message"]
    with pytest.raises(openai.BadRequestError, match=words):
        sdk.images.generate(prompt="a", extra_body=changes)


def test_nonsense_is_400(http):
    for name, body in NOT_JSON.items():
        for path in (IMAGES, EDITS):
            assert http.post(path, content=body, headers={"content-type": "application/json"}).status_code == 400, name


def test_bodies_from_the_openapi_get_no_5xx_but_503(http):
    examples = int(os.environ.get("OMNI_ACTORS_FUZZ_EXAMPLES", "30"))
    counts = fuzz(http, examples=examples, operations=(IMAGES, EDITS))
    assert set(counts) == {IMAGES, EDITS}
    assert any(status < 300 for status in counts[IMAGES])
