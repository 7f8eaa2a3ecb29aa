"""CPUOmniPlatform: vLLM's own CPU platform, with the answers that vLLM-Omni wants beyond it."""

from __future__ import annotations

import psutil  # type: ignore[import-untyped]
import torch
from vllm.platforms.cpu import CpuPlatform
from vllm_omni.platforms.interface import OmniPlatform, OmniPlatformEnum

__all__ = ["DEVICES", "CPUOmniPlatform"]

DEVICES = 8
"""How many devices we pretend to have, so that a deploy file may give each stage one of its own."""

_HERE = __name__.rpartition(".")[0]


class CPUOmniPlatform(OmniPlatform, CpuPlatform):  # type: ignore[misc]  # vLLM is not followed by mypy
    """The machine's cores and memory, shared by all "devices": nothing here is a limit to any of them.

    Where vLLM-Omni asks torch's accelerator for something that a CPU has not (streams, a caching allocator), the
    answer is that there is nothing to wait for and nothing held.
    """

    _omni_enum = OmniPlatformEnum.OOT
    # vLLM's own CPU platform would read the number of a stage's device as that of a NUMA node.
    device_control_env_var = "OMNI_ACTORS_CPU_DEVICES"

    @classmethod
    def get_omni_ar_worker_cls(cls) -> str:
        return f"{_HERE}.workers.CPUARWorker"

    @classmethod
    def get_omni_generation_worker_cls(cls) -> str:
        return f"{_HERE}.workers.CPUGenerationWorker"

    @classmethod
    def get_diffusion_worker_cls(cls) -> str:
        return f"{_HERE}.diffusion.CPUDiffusionWorker"

    @classmethod
    def get_diffusion_attn_backend_cls(
        cls, selected_backend: str | None, head_size: int, allow_trtllm_default: bool = False
    ) -> str:
        """torch's scaled dot product attention, the only one of the backends that runs on a CPU."""
        from vllm_omni.diffusion.attention.backends.registry import DiffusionAttentionBackendEnum

        path: str = DiffusionAttentionBackendEnum.TORCH_SDPA.get_path()
        return path

    @classmethod
    def supports_torch_inductor(cls) -> bool:
        return False

    @classmethod
    def supports_talker_mtp_graph_capture(cls) -> bool:
        return False

    @classmethod
    def supports_cpu_offload(cls) -> bool:
        return False

    @classmethod
    def get_torch_device(cls, local_rank: int | None = None) -> torch.device:
        return torch.device("cpu")

    @classmethod
    def get_device_count(cls) -> int:
        return DEVICES

    @classmethod
    def get_device_version(cls) -> str | None:
        return None

    @classmethod
    def is_available(cls) -> bool:
        return True

    @classmethod
    def synchronize(cls) -> None:
        pass

    @classmethod
    def get_device_memory(cls, device: torch.device | None = None) -> tuple[int, int]:
        """Free and all bytes of the machine's memory."""
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    @classmethod
    def get_free_memory(cls, device: torch.device | None = None) -> int:
        return cls.get_device_memory(device)[0]

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return cls.get_device_memory()[1]

    @classmethod
    def empty_cache(cls) -> None:
        pass

    @classmethod
    def max_memory_reserved(cls, device: torch.device | None = None) -> int:
        return 0

    @classmethod
    def max_memory_allocated(cls, device: torch.device | None = None) -> int:
        return 0

    @classmethod
    def reset_peak_memory_stats(cls, device: torch.device | None = None) -> None:
        pass
