"""One vLLM-Omni StageEngineCoreProc, started from data. ``python -m omni_actors.vllm_omni.stage_core``.

The payload on stdin is a msgpack map: ``env``, ``model``, ``options`` (vLLM-Omni's keyword arguments), ``stage_id``,
``replica``, ``devices``, ``handshake``. What is added to vLLM-Omni's own process is what ``engines.core_proc`` adds to
vLLM's.
"""

from __future__ import annotations

from typing import Any

from omni_actors.engines.core_proc import end_worker_quickly, host

__all__ = ["main"]


def main() -> None:
    """Run the engine until SIGTERM. Never returns."""
    host(_configure, _run)


def _configure(payload: dict[str, Any]) -> tuple[Any, type[Any]]:
    from omni_actors.vllm_omni._plan import prepare_engine, stage_plan
    from omni_actors.vllm_omni._wholes import tell_wholes

    prepare_engine(payload["devices"])
    plan = stage_plan(payload["model"], payload["options"], payload["stage_id"])
    if not plan.metadata.final_output:
        tell_wholes(plan.vllm_config.scheduler_config.get_scheduler_cls())
    return plan.vllm_config, plan.executor


def _run(config: Any, executor: type[Any], payload: dict[str, Any]) -> None:
    from vllm_omni.engine import stage_engine_core_proc as theirs

    # It would ask for SIGTERM at the end of the *thread* that started us, which lives for seconds. We have a lifeline.
    theirs.set_death_signal = lambda signal: None
    theirs.StageEngineCoreProc.run_stage_core(
        vllm_config=config,
        local_client=True,
        handshake_address=payload["handshake"],
        executor_class=executor,
        log_stats=False,
        omni_stage_id=payload["stage_id"],
        omni_replica_id=payload["replica"],
    )


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # a spawned worker imports its parent's main module under this name
    end_worker_quickly()
