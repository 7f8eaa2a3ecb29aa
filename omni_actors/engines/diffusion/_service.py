"""What the host can call of a diffusion engine, beside requests: adapters, sleep, memory, the profiler.

Calls run between rounds, in a thread of their own. A profiler sees only the thread that starts it, so that is turned on
and off by the working one, at its next step.
"""

from __future__ import annotations

import gc
import resource
from pathlib import Path
from typing import Any

import torch

from omni_actors._errors import InvalidRequest

__all__ = ["Service"]

_KIB = 1024


class Service:
    """Owns which adapters are loaded and active, whether the engine sleeps, and the profiler."""

    def __init__(self, pipeline: Any, device: str, offload: str) -> None:
        self._served, self._device, self._offload = pipeline, device, offload
        self._adapters: set[str] = set(_adapters(pipeline))
        self._active: tuple[tuple[str, float], ...] | None = None if self._adapters else ()
        self._asleep = False
        self._profile_to: str | None = None
        self._profiler: Any = None

    # ------------------------------------------------------------------ adapters

    def load_lora(self, name: str, path: str) -> list[str]:
        """Load an adapter (a folder or file of weights, or an id of the hub) under this name; returns all names.

        Raises ValueError for a name that is taken, FileNotFoundError for a place that is not there, else what diffusers
        raises.
        """
        torch.set_grad_enabled(False)
        if name in self._adapters:
            raise ValueError(f"an adapter {name!r} is loaded already")
        if path.startswith(("/", "./", "../")) and not Path(path).exists():
            raise FileNotFoundError(f"there is no adapter at {path}")
        self._served.load_lora_weights(path, adapter_name=name)
        self._adapters.add(name)
        self._active = None
        return sorted(self._adapters)

    def unload_lora(self, name: str) -> list[str]:
        """Forget an adapter; returns the names that are left."""
        self.check_adapters(((name, 1.0),))
        self._served.delete_adapters(name)
        self._adapters.discard(name)
        self._active = None if self._adapters else ()
        return sorted(self._adapters)

    def list_loras(self) -> list[str]:
        """The names of the adapters that requests can ask for."""
        return sorted(self._adapters)

    def check_adapters(self, wanted: tuple[tuple[str, float], ...]) -> None:
        """Raises InvalidRequest for one that is not loaded."""
        for name, _ in wanted:
            if name not in self._adapters:
                known = ", ".join(sorted(self._adapters)) or "none"
                raise InvalidRequest(f"there is no adapter {name!r}; loaded are: {known}")

    def activate(self, wanted: tuple[tuple[str, float], ...]) -> None:
        """Make these adapters, and no others, take part in the next pass."""
        if wanted == self._active:
            return
        if wanted:
            self._served.enable_lora()
            self._served.set_adapters([name for name, _ in wanted], [weight for _, weight in wanted])
        else:
            self._served.disable_lora()
        self._active = wanted

    # ------------------------------------------------------------------ memory

    def sleep(self, level: int = 1) -> None:
        """Move the models to the CPU and give the device's memory back; requests are refused until ``wake_up``."""
        if self._offload != "sequential":  # whose layers are there already
            self._served.to("cpu")
        self._asleep = True
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def wake_up(self) -> None:
        """Move the models back; where they are offloaded, they go when they are called."""
        if self._offload == "none":
            self._served.to(self._device)
        self._asleep = False

    def is_sleeping(self) -> bool:
        """Whether it sleeps."""
        return self._asleep

    def check_awake(self) -> None:
        """Raises RuntimeError while it sleeps."""
        if self._asleep:
            raise RuntimeError("the engine sleeps; wake it up first")

    def memory_report(self) -> dict[str, int]:
        """Bytes: ``weights``, ``resident`` and ``peak_resident`` of the process, and those of the device, if any."""
        parts = [each for each in self._served.components.values() if isinstance(each, torch.nn.Module)]
        usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
        report = {
            "weights": sum(p.numel() * p.element_size() for part in parts for p in part.parameters()),
            "resident": int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize(),
            "peak_resident": usage,
        }
        if self._device.startswith("cuda"):
            report |= {
                "device_allocated": torch.cuda.memory_allocated(),
                "device_reserved": torch.cuda.memory_reserved(),
                "device_peak": torch.cuda.max_memory_allocated(),
            }
        return report

    # ------------------------------------------------------------------ profiler

    def start_profile(self, path: str) -> None:
        """From the next step on, record what runs, until ``stop_profile``; the trace goes to this file."""
        if self._profile_to is not None:
            raise RuntimeError(f"a profile is being taken already, to {self._profile_to}")
        self._profile_to = path

    def stop_profile(self) -> None:
        """Write the trace at the next step."""
        self._profile_to = None

    def turn_profiler(self) -> None:
        """Called by the working thread, before a step."""
        if self._profiler is None and self._profile_to is not None:
            profiler = torch.profiler.profile()
            profiler.start()
            self._profiler = profiler, self._profile_to
        elif self._profiler is not None and self._profile_to is None:
            (profiler, path), self._profiler = self._profiler, None
            profiler.stop()
            profiler.export_chrome_trace(path)


def _adapters(pipeline: Any) -> list[str]:
    listed = getattr(pipeline, "get_list_adapters", None)
    if listed is None:
        return []
    try:
        return sorted({name for names in listed().values() for name in names})
    except (AttributeError, ValueError):  # no PEFT, or a pipeline whose parts take none
        return []
