"""What vLLM-Omni's deploy files and options may ask for and our runtime does not do. It is refused by name.

All else goes to vLLM-Omni as it is.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from omni_actors.config import did_you_mean
from omni_actors.config._problems import Problems
from omni_actors.config._tree import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["refuse_what_we_do_not_run"]

_OF_A_STAGE = re.compile(r"stage_\d+_\w+\Z")

_REGISTRYS = {"final_output", "final_output_type"}
_OF_AN_EDGE = {"from", "to", "window_size", "max_inflight"}

_OPTIONS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "headless": (bool, "stages on several machines"),
    "stage_id": (lambda value: value is not None, "one stage alone, for a machine of its own"),
    "omni_master_address": (bool, "stages on several machines"),
    "omni_master_port": (bool, "stages on several machines"),
    "omni_replica_address": (bool, "stages on several machines"),
    "omni_dp_size_local": (lambda value: int(value or 1) > 1, "replicas by machine; num_replicas of a stage is run"),
    "omni_lb_policy": (bool, "a policy of its own for choosing among replicas; ours is the one with least to do"),
    "worker_backend": (lambda value: value not in (None, "multi_process"), "workers on ray"),
    "ray_address": (bool, "workers on ray"),
    "forced_aligner": (bool, "the forced aligner's stage of time stamps"),
    "forced_aligner_config": (bool, "the forced aligner's stage of time stamps"),
}  # fmt: skip
"""By option: when it asks for it, and what it asks for."""


def refuse_what_we_do_not_run(model: str, options: Mapping[str, Any], resolution: Any) -> None:
    """Raises ConfigError: the first thing, the others as its notes; each with its path and file."""
    problems = Problems()
    for path, words in _options(options, resolution):
        problems.add(Place("option", path=path), words)
    file = resolution.config_path
    for path, words in [*_file(file, resolution), *_edges(file, resolution)]:
        problems.add(Place(file, path=path), words)
    for stage in resolution.stage_configs:
        for path, words in _stage(stage):
            problems.add(Place(file, path=f"stages.{stage.stage_id}.{path}"), words, stage=stage.model_stage)
    problems.raise_any()


def _options(options: Mapping[str, Any], resolution: Any) -> Iterator[tuple[str, str]]:
    known = _known_options(resolution)
    for name, value in options.items():
        if name in _OPTIONS:
            asked, what = _OPTIONS[name]
            if asked(value):
                yield name, f"not run on our runtime: {what}"
        elif name not in known and not _OF_A_STAGE.match(name):
            yield name, f"vLLM-Omni has no such option; {did_you_mean(name, known)}"


def _known_options(resolution: Any) -> frozenset[str]:
    from vllm_omni.config.omni_config import VllmOmniOrchestratorConfig
    from vllm_omni.diffusion.data import OmniDiffusionConfig
    from vllm_omni.engine.arg_utils import OmniEngineArgs, OrchestratorArgs

    classes: tuple[Any, ...] = (OmniEngineArgs, OrchestratorArgs, VllmOmniOrchestratorConfig, OmniDiffusionConfig)
    declared = {field.name for each in classes for field in fields(each)}
    return frozenset({*declared, *resolution.pipeline_config.stage_cli_aliases, "default_sampling_params"})


def _file(file: str | None, resolution: Any) -> Iterator[tuple[str, str]]:
    """Of the file as a whole."""
    from vllm_omni.config.stage_config import DeployConfig

    said, pipeline = _content(file), resolution.pipeline_config
    known = {field.name for field in fields(DeployConfig)}
    for key in said.keys() - known:
        yield key, f"vLLM-Omni has no such key and would ignore it; {did_you_mean(str(key), known)}"
    yield from _what_nobody_reads(said, resolution)
    if pipeline.duplex_plugin and said.get("session_mode", pipeline.default_session_mode) == "duplex":
        yield "session_mode", "not run on our runtime: duplex sessions; write session_mode: turn if the model has turns"
    if resolution.omni_lb_policy is not None:
        yield "omni_lb_policy", f"not run on our runtime: {resolution.omni_lb_policy} among replicas"


def _what_nobody_reads(said: Mapping[str, Any], resolution: Any) -> Iterator[tuple[str, str]]:
    """Keys of stages and edges that vLLM-Omni passes over, where they say something of their own."""
    stages = {stage.stage_id: stage for stage in resolution.stage_configs}
    for given in said.get("stages") or ():
        number = given.get("stage_id")
        if number not in stages:
            yield f"stages.{number}", f"this pipeline has no such stage; known: {', '.join(map(str, stages))}"
            continue
        for key in _REGISTRYS & given.keys():
            if given[key] != (registered := getattr(stages[number], key)):
                yield (
                    f"stages.{number}.{key}",
                    f"vLLM-Omni would ignore {given[key]!r}: the registry says {registered!r}",
                )
    for index, edge in enumerate(said.get("edges") or ()):
        for key in edge.keys() - _OF_AN_EDGE:
            yield f"edges[{index}].{key}", "vLLM-Omni has no such key of an edge and would ignore it"


def _edges(file: str | None, resolution: Any) -> Iterator[tuple[str, str]]:
    """Edges that the pipeline lacks, and connectors that want what only vLLM-Omni's own orchestrator tells them."""
    from vllm_omni.distributed.omni_connectors import load_omni_transfer_config
    from vllm_omni.distributed.omni_connectors.utils.config import TRANSFER_ENGINE_CONNECTOR_NAMES

    try:
        transfer = load_omni_transfer_config(config_dict=_content(file))
    except Exception as error:  # where it is used, vLLM-Omni would log this and run without connectors
        yield "connectors", f"vLLM-Omni refuses it: {error}"
        return
    edges = {(str(source), str(stage.stage_id)) for stage in resolution.stage_configs for source in stage.input_sources}
    for edge, connector in (transfer.connectors if transfer is not None else {}).items():
        if edge not in edges:
            yield "edges", f"stage {edge[1]} of this pipeline has no input from stage {edge[0]}"
        elif connector.name in TRANSFER_ENGINE_CONNECTOR_NAMES:
            words = f"not run on our runtime: {connector.name} (the receiver would not be told the sender's address)"
            yield f"edges.{'->'.join(edge)}", words


def _content(file: str | None) -> Mapping[str, Any]:
    from vllm_omni.config.stage_config import resolve_deploy_yaml

    return {} if file is None else resolve_deploy_yaml(file)


def _stage(stage: Any) -> Iterator[tuple[str, str]]:
    parallel, connectors = stage.parallel_config, stage.connector_config
    if stage.runtime_config.distributed_executor_backend == "ray":
        yield "distributed_executor_backend", "not run on our runtime: workers on ray"
    if getattr(parallel, "nnodes", 1) > 1:
        yield "nnodes", "not run on our runtime: a stage on several machines"
    if stage.stage_type.value == "llm" and parallel.data_parallel_size > 1:
        yield "data_parallel_size", "not run on our runtime: several engines in one replica; num_replicas is run"
    diffusion = getattr(stage, "diffusion_config", None)
    if connectors.kv_transfer_config is not None or getattr(diffusion, "kv_transfer_config", None) is not None:
        yield "kv_transfer_config", "not run on our runtime: vLLM's own KV connectors between stages"
    if stage.pooling_config.runner == "pooling":
        yield "runner", "not run on our runtime: pooling stages"
    if stage.prompt_expand_func is not None and connectors.async_chunk:
        yield "prompt_expand_func", "not run on our runtime: companions of a stage that hands on in chunks"
