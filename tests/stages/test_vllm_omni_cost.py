"""When a vLLM-Omni stage's input processing goes to a thread."""

import time

import pytest

from omni_actors.vllm_omni._cost import Cost, is_long


def test_nothing_is_known_before_the_first_call():
    cost = Cost()
    assert not cost.light
    with cost.timed():
        pass
    assert cost.light


def test_what_took_long_is_forgotten_by_halves():
    cost = Cost()
    cost.took(0.0001)
    cost.took(0.007)
    for _ in range(2):
        cost.took(0.0001)
        assert not cost.light
    cost.took(0.0001)
    assert cost.light


def test_a_call_that_fails_is_timed_too():
    cost = Cost()
    with pytest.raises(ValueError, match="bad"), cost.timed():
        _use_cpu(0.002)
        raise ValueError("bad")
    assert not cost.light


def test_waiting_for_a_processor_is_not_work():
    cost = Cost()
    with cost.timed():
        time.sleep(0.005)
    assert cost.light


def _use_cpu(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.parametrize(
    ("prompt", "long"),
    [
        ("hello", False),
        ("a" * 5000, True),
        ({"prompt": "hello"}, False),
        ({"prompt": "hello", "multi_modal_data": None}, False),
        ({"prompt": "hello", "multi_modal_data": {"image": 1}}, True),
        ({"prompt_token_ids": [1, 2]}, False),
        ({"prompt_token_ids": [0] * 40_000}, True),
        ([{"role": "user", "content": "hello"}], True),
        (None, True),
    ],
)
def test_only_short_texts_and_tokens_are_looked_at_at_once(prompt, long):
    assert is_long(prompt) is long
