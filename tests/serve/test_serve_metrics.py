"""``/metrics`` of a real ``omni-actors serve tiny-omni``: what vLLM's server says, per stage, and ours beside it."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import vllm
from prometheus_client.parser import text_string_to_metric_families

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

GOLDEN = Path(__file__).parents[1] / "golden" / f"metrics-{vllm.__version__}.json"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "What is two plus three?"}]
LONG = [{"role": "user", "content": "What is two plus three, nine minus four, one plus one, and six minus two?"}]


@pytest.fixture
def http(lent) -> Iterator[httpx.Client]:
    with lent.server().client() as http:
        yield http


def families(http: httpx.Client) -> dict:
    return {family.name: family for family in text_string_to_metric_families(http.get("/metrics").text)}


class Numbers:
    """One scrape."""

    def __init__(self, http: httpx.Client) -> None:
        self._found = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families(http).values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        if name.startswith("vllm:"):
            labels = {"model_name": "answers", "engine": "0", "stage": "thinker"} | labels
        return self._found[name, frozenset(labels.items())]


def at_rest_within(http: httpx.Client, limit_s: float) -> bool:
    """Whether every gauge of what is in the house goes back to nothing. Each look is a scrape."""
    ours = ("requests_in_flight", "requests_unreleased", "slots_taken", "leases", "prompt_bytes", "unread_bytes")
    theirs = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    deadline = time.monotonic() + limit_s
    while True:
        now = Numbers(http)
        held = [now(f"omni_{name}") for name in ours]
        held += [now(f"vllm:{name}", stage=stage) for name in theirs for stage in ("thinker", "talker")]
        held += [now("omni_stage_running", stage=stage) for stage in ("thinker", "talker", "vocoder", "painter")]
        if not any(held):
            return True
        if time.monotonic() > deadline:
            return False


def test_whatever_vllms_own_server_tells_ours_tells_too(http):
    """Recorded from vLLM's server with the same model (``tools/golden/metrics.py``)."""
    if not GOLDEN.exists():
        pytest.skip(f"the metrics of vLLM {vllm.__version__} were not recorded")
    http.post(CHAT, json={"messages": MESSAGES}).raise_for_status()
    http.post(COMPLETIONS, json={"model": "answers", "prompt": "What", "max_tokens": 3}).raise_for_status()
    ours = families(http)
    for name, theirs in json.loads(GOLDEN.read_text())["families"].items():
        assert ours[name].type == theirs["type"], name
        labels = {label for sample in ours[name].samples for label in sample.labels}
        assert set(theirs["labels"]) <= labels, name
        assert labels - set(theirs["labels"]) <= {"stage"}, name


def test_a_requests_tokens_and_times_are_counted(http):
    before = Numbers(http)
    asked = {"model": "answers", "prompt": "What is two plus three?", "max_tokens": 5, "ignore_eos": True}
    usage = http.post(COMPLETIONS, json=asked).json()["usage"]
    after = Numbers(http)

    def more(name: str, **labels: str) -> float:
        return after(name, **labels) - before(name, **labels)

    assert more("vllm:prompt_tokens_total") == usage["prompt_tokens"]
    assert more("vllm:generation_tokens_total") == usage["completion_tokens"] == 5
    assert more("vllm:request_success_total", finished_reason="length") == 1
    assert more("vllm:request_success_total", finished_reason="stop") == 0
    once = ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
            "request_prefill_time_seconds", "request_decode_time_seconds", "request_time_per_output_token_seconds",
            "request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens")  # fmt: skip
    assert {name: more(f"vllm:{name}_count") for name in once} == dict.fromkeys(once, 1)
    assert more("vllm:inter_token_latency_seconds_count") == 4
    assert more("vllm:request_generation_tokens_sum") == 5
    assert more("vllm:prefix_cache_queries_total") == usage["prompt_tokens"]
    assert 0 < more("vllm:time_to_first_token_seconds_sum") < more("vllm:e2e_request_latency_seconds_sum") < 30
    assert more("omni_requests_ended_total", kind="finished") == 1
    assert at_rest_within(http, 5)


def test_a_stage_that_nobody_reads_as_text_is_counted_as_well(http):
    before = Numbers(http)
    asked = {"messages": MESSAGES, "modalities": ["text", "audio"], "audio": {"voice": "any", "format": "wav"}}
    answer = http.post(CHAT, json=asked).json()
    assert base64.b64decode(answer["choices"][0]["message"]["audio"]["data"])
    after = Numbers(http)
    for stage in ("thinker", "talker"):
        for name in ("generation_tokens_total", "prompt_tokens_total", "e2e_request_latency_seconds_count"):
            assert after(f"vllm:{name}", stage=stage) > before(f"vllm:{name}", stage=stage), (stage, name)
    assert at_rest_within(http, 5)


def test_who_leaves_leaves_nothing_on_the_gauges(http):
    long, before = {"messages": LONG, "stream": True, "ignore_eos": True}, Numbers(http)
    seen: set[tuple[float, float, bool]] = set()
    for _ in range(10):  # a request takes a fifth of a second, a scrape on a busy machine longer
        with http.stream("POST", CHAT, json=long) as answer:
            next(answer.iter_lines())
            now = Numbers(http)
            seen.add((now("vllm:num_requests_running"), now("omni_stage_running", stage="thinker"),
                      now("vllm:kv_cache_usage_perc") > 0))  # fmt: skip
        assert at_rest_within(http, 5)
    after = Numbers(http)
    ended = [after("omni_requests_ended_total", kind=kind) - before("omni_requests_ended_total", kind=kind)
             for kind in ("finished", "aborted")]  # fmt: skip
    assert sum(ended) == 10
    assert ended[1] > 0
    assert (1, 1, True) in seen


def test_stages_and_their_engines(http):
    now = Numbers(http)
    for stage in ("thinker", "talker", "vocoder", "painter"):
        assert now("omni_stage_state", stage=stage, state="ready") == now("omni_stage_replicas_ready", stage=stage) == 1
        assert now("omni_stage_restarts_total", stage=stage, replica="0") == 0
    assert now("omni_ready") == 1
    assert "vocoder" not in {label for sample in families(http)["vllm:num_requests_running"].samples
                             for label in sample.labels.values()}  # fmt: skip


def test_sleeping_engines_are_awake_again_and_say_so(http):
    def awake() -> list[float]:
        now = Numbers(http)
        return [now("vllm:engine_sleep_state", sleep_state="awake", stage=stage) for stage in ("thinker", "talker")]

    assert awake() == [1, 1]
    http.post("/sleep", params={"level": "0"}).raise_for_status()
    assert awake() == [0, 0]
    http.post("/wake_up").raise_for_status()
    assert awake() == [1, 1]
