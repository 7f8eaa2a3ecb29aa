"""Workers and runners of LLM stages: vLLM-Omni's, with vLLM's CPU ones in the place of its GPU ones beneath them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm_omni.worker.gpu_ar_model_runner import GPUARModelRunner
from vllm_omni.worker.gpu_generation_model_runner import GPUGenerationModelRunner
from vllm_omni.worker.mixins import OmniWorkerMixin

from .attention import send_to_sdpa
from .deterministic import deterministic, hand_on_generators, reseed, take_means
from .kv import send_plain

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CPUARModelRunner", "CPUARWorker", "CPUGenerationModelRunner", "CPUGenerationWorker"]


class _OnCPU:
    """What both runners need: no copies between host and device, no CUDA graphs.

    No subclass of CPUModelRunner: that would put it before vLLM-Omni's own base runner, whose methods must come first.
    """

    model: Any
    compilation_config: Any
    _postprocess_tensors: Callable[[], None]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # CPUModelRunner has done it, but vLLM-Omni's runners then make some of the tensors anew.
        self._postprocess_tensors()

    def _make_buffer(self, *args: Any, **options: Any) -> Any:
        """A buffer whose device side is its host side."""
        buffer = super()._make_buffer(*args, **options)  # type: ignore[misc]
        buffer.gpu = buffer.cpu
        return buffer

    def load_model(self, *args: Any, **options: Any) -> None:
        super().load_model(*args, **options)  # type: ignore[misc]
        if deterministic():
            take_means(self.model)

    def _init_talker_mtp(self) -> None:
        # vLLM leaves this at None where there are no graphs, and vLLM-Omni sizes its buffers by it.
        if self.compilation_config.max_cudagraph_capture_size is None:
            self.compilation_config.max_cudagraph_capture_size = 0
        hand_on_generators(self.model)
        super()._init_talker_mtp()  # type: ignore[misc]


class CPUARModelRunner(_OnCPU, GPUARModelRunner, CPUModelRunner):  # type: ignore[misc]  # vLLM is not followed by mypy
    """Of stages that generate tokens."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        send_plain(self.kv_transfer_manager)


class CPUGenerationModelRunner(_OnCPU, GPUGenerationModelRunner, CPUModelRunner):  # type: ignore[misc]
    """Of stages that make something in one step, such as audio of codec frames."""

    def execute_model(self, *args: Any, **options: Any) -> Any:
        if deterministic():
            reseed()
        return super().execute_model(*args, **options)


class _CPUOmniWorker(OmniWorkerMixin, CPUWorker):  # type: ignore[misc]
    """One engine's only worker."""

    model_runner_cls: ClassVar[type]

    def init_device(self) -> None:
        """CPUWorker's, then a runner of ours for the plain one that it has made."""
        send_to_sdpa()
        self.use_v2_model_runner = False
        super().init_device()
        self.model_runner = self.model_runner_cls(self.vllm_config, torch.device("cpu"))

    def determine_available_memory(self) -> int:
        """CPUWorker's, after one forward with dummy inputs: some models finish making themselves in their first."""
        self.model_runner.profile_run()
        available: int = super().determine_available_memory()
        return available


class CPUARWorker(_CPUOmniWorker):
    """Of stages that generate tokens."""

    model_runner_cls = CPUARModelRunner


class CPUGenerationWorker(_CPUOmniWorker):
    """Of stages that make something in one step."""

    model_runner_cls = CPUGenerationModelRunner
