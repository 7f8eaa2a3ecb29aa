"""What clients and the router tell each other: what an item says of itself, what it is when nothing was said."""

from __future__ import annotations

import gc

import msgspec
import numpy as np
import pytest

from omni_actors._errors import EngineDead, OmniError
from omni_actors.lifecycle.events import (
    Batch,
    LeaseFailed,
    Output,
    Produced,
    Released,
    ReplicaDied,
    TensorChunk,
    TextChunk,
)

SOUND = np.zeros(6, dtype=np.float32)


def output(payload):
    return Output("me", "stage", "any", payload)


def test_an_item_of_text_has_words_and_no_sound():
    item = output(TextChunk(text="hello", token_ids=[1, 2]))
    assert (item.text, item.audio, item.sample_rate) == ("hello", None, 0)


def test_an_item_of_sound_has_samples_and_no_words():
    item = output(TensorChunk(tensors={"audio": SOUND}, meta={"sample_rate": 16000.0}))
    assert (item.text, item.audio, item.sample_rate) == ("", SOUND, 16000)
    assert type(item.sample_rate) is int


def test_an_image_is_neither():
    item = output(TensorChunk(tensors={"image": SOUND}))
    assert (item.text, item.audio, item.sample_rate) == ("", None, 0)


def test_what_it_costs_to_hold_an_item_unread():
    assert TextChunk(text="hello", token_ids=[1, 2]).nbytes == 5 + 2 * 8
    assert TensorChunk(tensors={"audio": SOUND, "image": SOUND}).nbytes == 2 * 24
    assert (TextChunk().nbytes, TensorChunk().nbytes) == (0, 0)


def test_what_was_not_said_is_nothing():
    assert msgspec.structs.asdict(TextChunk()) == {
        "text": "", "token_ids": [], "logprobs": None, "finish_reason": None, "stop_reason": None, "prompt_tokens": 0,
        "native": None,
    }  # fmt: skip
    assert msgspec.structs.asdict(TensorChunk()) == {
        "tensors": {},
        "meta": {},
        "finish_reason": None,
        "prompt_tokens": 0,
        "native": None,
    }
    assert msgspec.structs.astuple(Produced("k", None)) == ("k", None, False, False)
    assert (output(TextChunk()).index, output(TextChunk()).part) == (0, 0)


def test_payloads_are_named_field_by_field():
    for kind in (TextChunk, TensorChunk):
        with pytest.raises(TypeError, match="positional"):
            kind("hello")


def test_nobody_changes_what_was_said():
    text = TextChunk(text="a")
    for said, field in (
        (text, "text"), (TensorChunk(), "meta"), (Produced("k", text), "payload"), (Released("k"), "key"),
        (LeaseFailed("k", OmniError("so")), "error"), (ReplicaDied(EngineDead("dead")), "error"),
        (Batch("stage", 0, 1, []), "events"), (output(text), "payload"),
    ):  # fmt: skip
        with pytest.raises(AttributeError, match="immutable"):
            setattr(said, field, None)


def test_what_is_made_per_token_is_out_of_the_collectors_sight():
    text = TextChunk(text="a", token_ids=[1])
    sound = TensorChunk(tensors={"audio": SOUND})
    assert not any(gc.is_tracked(made) for made in (text, Produced("k", sound), output(sound)))
