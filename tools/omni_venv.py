"""Make torchvision and torchaudio importable beside the CPU build of torch, for vLLM-Omni: ``make setup-omni``.

vLLM-Omni and transformers import both. Their published wheels are built for CUDA and do not load there; there are none
for CPUs. Of torchvision the models on a CPU need the Python parts: it is told to do without its C++ operators. Of
torchaudio they need only that the import succeeds: a stub takes its place, whose functions raise when they are called.

Run by the environment's own python after its packages are installed; run again, it changes nothing.
"""

from __future__ import annotations

import re
import site
import sys
from pathlib import Path

STUB = '''"""No torchaudio: a stub made by omni_actors' tools/omni_venv.py."""

__version__ = "2.13.0+stub"


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **options):
        raise RuntimeError(f"{__name__}.{name}: this environment has a stub for torchaudio")

    return missing
'''
REGISTERS_ALWAYS = re.compile(r'^@torch\.library\.register_fake\("torchvision::(q?nms)"\)', re.MULTILINE)
STUBBED = ("__init__.py", "functional.py", "transforms.py", "compliance/__init__.py", "compliance/kaldi.py")


def torchvision_without_operators(folder: Path) -> None:
    """Without its libraries it knows that it has no operators, but for nms: those it registers all the same."""
    for library in folder.glob("*.so"):
        library.unlink()
    file = folder / "_meta_registrations.py"
    text = file.read_text()
    patched = REGISTERS_ALWAYS.sub(r'@register_meta("\1")', text)
    if patched != text:
        file.write_text(patched)


def stub_torchaudio(folder: Path) -> None:
    for name in STUBBED:
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(STUB)


def main() -> None:
    if sys.prefix == sys.base_prefix:
        sys.exit("run this by the python of a virtual environment: it changes what is installed there")
    packages = Path(site.getsitepackages()[0])
    torchvision_without_operators(packages / "torchvision")
    stub_torchaudio(packages / "torchaudio")


if __name__ == "__main__":
    main()
