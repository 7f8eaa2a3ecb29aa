"""Pictures: what the routes and chats say of them, on fake engines in memory."""

from __future__ import annotations

import base64
import io
import json

import pytest
from omni_actors_asyncio.server import HttpLimits
from omni_actors_asyncio.server._images_asked import ImageWish, painting
from PIL import Image

from omni_actors.config import InputSpec, StageSpec
from omni_actors.testing.rigs import core, omni_stage, pipeline

from .conftest import speaking
from .test_serve_gate import jpeg, png

CHAT = "/v1/chat/completions"
IMAGES = "/v1/images/generations"
EDITS = "/v1/images/edits"
MESSAGES = [{"role": "user", "content": "a cup of coffee"}]
RED, BLUE = (200, 10, 20), (10, 20, 200)


def painted(colour, seed=7):
    """What a fake painter says: 4 x 2 pixels of one colour."""
    data = base64.b64encode(bytes(colour) * 8).decode()
    return {"tensors": {"image": {"dtype": "uint8", "shape": [2, 4, 3], "data": data}}, "meta": {"seed": seed}}


def painter(*, pictures=(RED,), **more):
    script = [[painted(colour, 7 + number) for number, colour in enumerate(pictures)]]
    return omni_stage("painter", output="image", script=script, **more)


def painting_alone(**more):
    """A painter that takes the prompt."""
    return pipeline(painter(**more))


def painting_answers(**more):
    """Thinker, then the painter, beside a voice."""
    inputs = {"inputs": [InputSpec(stage="thinker")], "transform": "omni_actors.testing.pipelines:voice"}
    return pipeline(
        core("thinker", output="text", tokens=10),
        omni_stage("voice", output="audio", chunks=2, **inputs),
        painter(**inputs, **more),
    )


def opened(data):
    with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
        picture.load()
        return picture


def file(kind, **how):
    made = io.BytesIO()
    Image.new("RGB", (4, 2), RED).save(made, kind, **how)
    return made.getvalue()


# ---------------------------------------------------------------------- generations


def test_a_picture_is_a_png_with_its_seed(serving):
    async def story(served):
        asked = {"model": "fake", "prompt": "a cup", "n": 1, "size": "auto", "user": "me", "background": "auto"}
        return (await served.post(IMAGES, asked)).json()

    answer = serving(painting_alone(), story)
    (made,) = answer["data"]
    assert (made["seed"], answer["size"], answer["output_format"], answer["quality"]) == (7, "4x2", "png", None)
    picture = opened(made["b64_json"])
    assert (picture.format, picture.size, picture.getpixel((3, 1))) == ("PNG", (4, 2), RED)
    assert answer["usage"]["total_tokens"] == 0


@pytest.mark.parametrize("form", ["jpeg", "webp"])
def test_other_formats_have_a_quality(serving, form):
    async def story(served):
        return (await served.post(IMAGES, {"prompt": "a", "output_format": form, "output_compression": 90})).json()

    answer = serving(painting_alone(), story)
    assert opened(answer["data"][0]["b64_json"]).format == form.upper()
    assert answer["output_format"] == form


def test_a_painter_behind_a_thinker_gets_what_the_thinker_says(serving):
    async def story(served):
        answer = (await served.post(IMAGES, {"prompt": "what is two plus three"})).json()
        assert await served.omni.call("thinker", "has_work") == [False]
        return answer

    answer = serving(painting_answers(), story)
    assert [opened(made["b64_json"]).getpixel((0, 0)) for made in answer["data"]] == [RED]
    assert answer["usage"]["output_tokens"] == 10
    assert answer["usage"]["input_tokens"] > 0


def test_as_a_stream_the_last_event_has_the_usage(serving):
    async def story(served):
        return await served.post(IMAGES, {"prompt": "a", "stream": True})

    answer = serving(painting_answers(pictures=(RED, BLUE)), story)
    assert answer.headers["content-type"].startswith("text/event-stream")
    first, last = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    assert {first["type"], last["type"]} == {"image_generation.completed"}
    assert [opened(event["b64_json"]).getpixel((0, 0)) for event in (first, last)] == [RED, BLUE]
    assert (first["usage"]["total_tokens"], last["usage"]["output_tokens"]) == (0, 10)


def test_a_picture_of_several_leaves_before_the_next_is_made(serving):
    async def story(served):
        visit = served.visit(IMAGES, {"prompt": "a", "n": 2, "stream": True})
        start, event = [await visit.messages.get() for _ in range(2)]
        await visit.leave()
        assert await served.idle_within(1)
        return start["status"], event["body"]

    status, event = serving(painting_alone(pictures=(RED, BLUE), capacity=1, stuck_at_chunk=1), story)
    assert status == 200
    assert b"image_generation.completed" in event


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"model": "gpt-9"}, 404, "model"),
        ({"prompt": " "}, 400, "prompt"),
        ({"prompt": 5}, 400, "prompt"),
        ({"prompt": "x" * 4097}, 400, "prompt"),
        ({"n": 0}, 400, "n"),
        ({"n": 17}, 400, "n"),
        ({"n": True}, 400, "n"),
        ({"size": "big"}, 400, "size"),
        ({"size": "0x8"}, 400, "size"),
        ({"size": "8X8"}, 400, "size"),
        ({"size": "99999x99999"}, 400, "size"),
        ({"size": "4096x2048", "n": 3}, 400, "size"),
        ({"quality": "superb"}, 400, "quality"),
        ({"response_format": "url"}, 400, "response_format"),
        ({"output_format": "gif"}, 400, "output_format"),
        ({"output_compression": 50}, 400, "output_compression"),
        ({"output_format": "jpeg", "output_compression": 101}, 400, "output_compression"),
        ({"background": "transparent"}, 400, "background"),
        ({"stream": True, "partial_images": 4}, 400, "partial_images"),
        ({"partial_images": 1}, 400, "partial_images"),
        ({"seed": "x"}, 400, "seed"),
        ({"num_steps": 5}, 400, "num_steps"),
    ],
)
def test_what_is_wrong_with_a_wish_is_said(serving, changes, status, param):
    async def story(served):
        answer = await served.post(IMAGES, {"prompt": "a cup"} | changes)
        assert sum((await served.omni.statistics()).ended.values()) == 0
        return answer

    answer = serving(painting_alone(), story)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (status, param, status)


def test_what_makes_no_pictures_says_so(serving):
    async def story(served):
        form = {"image": ("x.png", file("PNG"))}
        edit = await served.http.post(EDITS, data={"prompt": "a"}, files=form)
        return await served.post(IMAGES, {"prompt": "a"}), edit

    for answer in serving(speaking(), story):
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "this pipeline makes no pictures"


def test_a_painter_that_dies_is_503(serving):
    async def story(served):
        first = await served.post(IMAGES, {"prompt": "a"})
        await served.omni.close(drain_s=0)
        return first, await served.post(IMAGES, {"prompt": "a"})

    for answer in serving(painting_alone(die_at_chunk=0, stderr="Traceback: /srv/secret.py"), story):
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "secret" not in answer.text


def test_a_quality_is_a_share_of_the_stages_own_steps():
    def steps(quality, **own):
        stage = StageSpec(name="painter", engine="diffusion", **own)
        return painting(ImageWish(quality=quality), stage).get("num_inference_steps")

    usual = [steps(quality) for quality in ("low", "medium", "standard", "high", "hd", "xhigh", "max")]
    assert usual == [15, 30, 30, 45, 45, 60, 90]
    assert steps("auto") is steps(None) is None
    assert [steps(quality, params={"num_inference_steps": 1}) for quality in ("low", "high")] == [1, 2]
    wish = ImageWish(quality="max", num_inference_steps=5, size="64x32", seed=3)
    made = painting(wish, StageSpec(name="painter", engine="diffusion"), n=2, progress=True, partial=2)
    assert made == {
        "num_inference_steps": 5, "width": 64, "height": 32, "seed": 3, "n": 2, "progress": True, "preview_every": 2,
    }  # fmt: skip


# ---------------------------------------------------------------------- edits


def truncated():
    noise = io.BytesIO()
    Image.effect_noise((64, 64), 50).convert("RGB").save(noise, "PNG")
    return noise.getvalue()[:2000]


WRONG_FILES = {
    "a text": b"hello",
    "nothing": b"",
    "a png bomb": png(50_000, 50_000),
    "a png without pixels in it": png(4, 2),
    "a jpeg that is only a header": jpeg(4, 2),
    "cut off": truncated(),
}


def test_a_file_that_is_no_picture_is_400_whatever_its_name(serving):
    async def story(served):
        return {
            (name, field): await served.http.post(
                EDITS, data={"prompt": "a"}, files={"image": ("a.png", file("PNG")), field: ("x.png", raw, "image/png")}
            )
            for name, raw in WRONG_FILES.items()
            for field in ("image", "mask")
        }

    for (name, field), answer in serving(painting_alone(), story).items():
        assert answer.status_code == 400, (name, answer.text)
        assert answer.json()["error"]["param"] == field, (name, answer.text)
        assert name != "a text" or "no image in png, jpeg, webp or gif" in answer.text


@pytest.mark.parametrize("body", [b"", b'{"prompt": "a"}', b"--x\r\n\r\n", b"--b\r\nnonsense"])
@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", "multipart/form-data; boundary=b", ""])
def test_a_body_that_is_no_form_is_400(serving, body, kind):
    async def story(served):
        return await served.http.post(EDITS, content=body, headers={"content-type": kind})

    assert serving(painting_alone(), story).status_code == 400


def test_what_is_wrong_with_an_edit_is_said(serving):
    image, mask = ("a.png", file("PNG")), io.BytesIO()
    Image.new("RGBA", (4, 4)).save(mask, "PNG")

    async def story(served):
        async def post(data, files):
            answer = await served.http.post(EDITS, data=data, files=files)
            return answer.status_code, answer.json()["error"]["param"]

        prompt = {"prompt": "a"}
        assert await post(prompt, {"picture": image}) == (400, "picture")
        assert await post(prompt, {"mask": image}) == (400, "image")
        assert await post(prompt, [("image[]", image)] * 17) == (400, "image")
        assert await post(prompt, [("image", image), ("mask", image), ("mask", image)]) == (400, "mask")
        assert await post(prompt, {"image": image, "mask": ("m.png", mask.getvalue())}) == (400, "mask")
        assert await post({"n": "2"}, {"image": image}) == (400, None)  # no prompt
        assert await post(prompt | {"n": "many"}, {"image": image}) == (400, "n")
        assert await post(prompt | {"shape": "round"}, {"image": image}) == (400, "shape")
        assert await post({"prompt": ["a", "b"]}, {"image": image}) == (400, "prompt")

    serving(painting_alone(), story)


def test_an_upload_beyond_the_limit_is_413(serving):
    async def story(served):
        return await served.http.post(EDITS, data={"prompt": "a"}, files={"image": ("a.png", b"x" * 2000)})

    assert serving(painting_alone(), story, limits=HttpLimits(body_bytes=1000)).status_code == 413


def test_a_painter_behind_a_thinker_takes_no_picture(serving):
    async def story(served):
        return await served.http.post(EDITS, data={"prompt": "a"}, files={"image": ("a.png", file("PNG"))})

    answer = serving(painting_answers(), story)
    assert answer.status_code == 400
    assert "paints what another stage says" in answer.json()["error"]["message"]


# ---------------------------------------------------------------------- chats


def test_a_chat_has_its_text_its_sound_and_its_picture(serving):
    async def story(served):
        return (await served.post(CHAT, {"messages": MESSAGES, "modalities": ["text", "audio", "image"]})).json()

    answer = serving(painting_answers(), story)
    message = answer["choices"][0]["message"]
    assert message["content"] == message["audio"]["transcript"] != ""
    (part,) = message["images"]
    assert (part["type"], part["index"], part["seed"]) == ("image_url", 0, 7)
    head, _, data = part["image_url"]["url"].partition(",")
    assert head == "data:image/png;base64"
    assert opened(data).getpixel((0, 0)) == RED


def test_a_streamed_chat_gives_each_picture_when_it_is_complete(serving):
    asked = {
        "messages": MESSAGES,
        "modalities": ["text", "image"],
        "stream": True,
        "image": {"output_format": "webp"},
    }

    async def story(served):
        return await served.events(asked)

    events = serving(painting_answers(pictures=(RED, BLUE)), story)
    deltas = [event["choices"][0]["delta"] for event in events]
    parts = [part for delta in deltas for part in delta.get("images", ())]
    assert [part["index"] for part in parts] == [0, 1]
    assert all(opened(part["image_url"]["url"].partition(",")[2]).format == "WEBP" for part in parts)
    assert not any("audio" in delta for delta in deltas)
    assert "".join(delta.get("content", "") for delta in deltas)
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_chat_with_a_painter_paints_the_last_message(serving):
    async def story(served):
        chat = {"messages": [*MESSAGES, {"role": "user", "content": [{"type": "text", "text": "tea"}]}]}
        answer = await served.post(CHAT, chat | {"modalities": ["image"], "image": {"seed": 5}})
        pointed = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x"}}]}
        wrong = [
            {"messages": [pointed]},
            {"messages": MESSAGES, "image": {"colour": "red"}},
            {"messages": MESSAGES, "n": 2},
        ]
        return answer.json(), [await served.post(CHAT, each | {"modalities": ["image"]}) for each in wrong]

    answer, wrong = serving(painting_alone(), story)
    message = answer["choices"][0]["message"]
    assert (message["content"], len(message["images"])) == (None, 1)
    assert [each.status_code for each in wrong] == [400] * 3
    assert [each.json()["error"]["param"] for each in wrong] == ["messages", "image.colour", "n"]
