"""Chains of plain language models as pipelines of vLLM-Omni: each stage's prompt is what the stage before generated.

vLLM-Omni has no such pipeline, so ``register`` adds ``tiny_chain_1`` to ``tiny_chain_3`` to its registry. It has to be
called in each of its processes, which is what its general plug-ins are for: with a folder that ``announce`` has written
on PYTHONPATH it is one. A process without that folder on its path sees nothing of all this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["LENGTHS", "announce", "deploy", "handed_tokens", "register"]

LENGTHS = (1, 2, 3)

_ARCHITECTURE = "TinyChainQwen3ForCausalLM"
_ENTRY_POINTS = f"[vllm_omni.general_plugins]\nomni_actors_tiny_chains = {__name__}:register\n"
_STAGE: Mapping[str, Any] = {
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "max_model_len": 128,
    "gpu_memory_utilization": 0.1,
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "async_scheduling": False,
}


def announce(folder: Path) -> None:
    """Make ``folder``, on PYTHONPATH, an installed distribution whose only content is our plug-in."""
    info = folder / "omni_actors_tiny_chains-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: omni-actors-tiny-chains\nVersion: 0\n")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS)


def deploy(length: int, params: Mapping[str, Any]) -> str:
    """The deploy file of a chain of any Qwen3 model. ``params``: the sampling params of all its stages."""
    import yaml

    stages = [
        {"stage_id": number, "devices": str(number), **_STAGE, "default_sampling_params": dict(params)}
        for number in range(length)
    ]
    head = {"pipeline": _name(length), "async_chunk": False, "model_runner": "v1", "dtype": "float32"}
    text: str = yaml.safe_dump({**head, "stages": stages}, sort_keys=False)
    return text


def register() -> None:
    """Tell this process's vLLM-Omni of the chains and of their model. May be called again."""
    from vllm import ModelRegistry
    from vllm_omni.config.pipeline_registry import OMNI_PIPELINES, register_pipeline
    from vllm_omni.model_executor.models import OmniModelRegistry

    for registry in (ModelRegistry, OmniModelRegistry):
        if _ARCHITECTURE not in registry.get_supported_archs():
            registry.register_model(_ARCHITECTURE, f"{__package__}._plain:PlainQwen3")
    for length in LENGTHS:
        if _name(length) not in OMNI_PIPELINES:
            register_pipeline(_pipeline(length))


def _name(length: int) -> str:
    return f"tiny_chain_{length}"


def _pipeline(length: int) -> Any:
    from vllm_omni.config.stage_config import PipelineConfig

    stages = tuple(_stage(number, length) for number in range(length))
    return PipelineConfig(model_type=_name(length), model_arch=_ARCHITECTURE, stages=stages)


def _stage(number: int, length: int) -> Any:
    from vllm_omni.config.stage_config import StageExecutionType, StagePipelineConfig

    last = number == length - 1
    return StagePipelineConfig(
        stage_id=number,
        model_stage=f"llm{number}",
        execution_type=StageExecutionType.LLM_AR,
        input_sources=(number - 1,) if number else (),
        final_output=last,
        final_output_type="text" if last else None,
        owns_tokenizer=number == 0,
        engine_output_type="text",
        custom_process_input_func=f"{__name__}.handed_tokens" if number else None,
    )


def handed_tokens(sources: Sequence[Any], prompt: Any = None, requires_multimodal_data: bool = False) -> list[Any]:
    """One prompt per output of the stage before: all its tokens. As vLLM-Omni calls a function between stages."""
    from vllm_omni.inputs.data import OmniTokensPrompt

    return [OmniTokensPrompt(prompt_token_ids=_tokens(source.outputs[0])) for source in sources]


def _tokens(choice: Any) -> list[int]:
    """Where outputs come in pieces, vLLM-Omni adds up beside the last one."""
    return list(getattr(choice, "cumulative_token_ids", None) or choice.token_ids)
