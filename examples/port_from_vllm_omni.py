"""A loop over messages, as programs for vLLM-Omni's AsyncOmniEngine have it: ``python port_from_vllm_omni.py``."""

from __future__ import annotations

from omni_actors_asyncio import AsyncOmniEngine

THINKER, VOCODER = 0, 2
QUESTIONS = {"sum": "What is two plus three?", "difference": "What is nine minus four?", "empty": ""}

with AsyncOmniEngine("tiny-omni") as engine:
    for request_id, question in QUESTIONS.items():
        params = [{"temperature": 0.0}, *[None] * (engine.num_stages - 1)]
        engine.add_request(request_id, question, params, final_output_stage_ids=[THINKER, VOCODER])

    open_requests, seconds = set(QUESTIONS), dict.fromkeys(QUESTIONS, 0.0)
    while open_requests:
        message = engine.try_get_output(timeout=1)
        if message is None:
            continue
        name = message.request_id
        if message.type == "error":
            print(f"{name}: {message.error_type} ({message.status_code}): {message.error}")
            open_requests.discard(name)
            continue
        for output in message.engine_outputs:
            if output.audio is not None:
                seconds[name] += output.audio.shape[0] / output.sample_rate
        if message.finished:
            print(f"{name}: {message.terminal.text()} ({seconds[name]:.1f} s of speech)")
            open_requests.discard(name)
