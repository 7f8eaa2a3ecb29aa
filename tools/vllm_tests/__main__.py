"""vLLM's own tests on ours: ``python -m tools.vllm_tests SRC [--only SESSION …] [--whose ours|vllm|both]``.

SRC is vLLM's source tree, of the version that is installed. What is chosen of its tests (``list.toml``) is copied into
a folder of its own and run there, once with ``omni-actors serve`` and AsyncOmni, once with vLLM's server and AsyncLLM,
both on the tiny thinker. What vLLM's own fails is the tiny model's fault; exit 1 if ours fails anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_actors.config import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "out" / "vllm_tests"
LIMIT_S = 3600
"""Of one session."""
_INI = """[pytest]
asyncio_mode = strict
asyncio_default_fixture_loop_scope = function
markers =
    skip_global_cleanup
"""
_ONLY_CUDA = "if not current_platform.is_cuda():\n    pytest.skip("


def main() -> int:
    """Everything; the exit status."""
    options = _options()
    listed = tomllib.loads(Path(__file__).with_name("list.toml").read_text())
    chosen = {name: run for name, run in listed["run"].items() if not options.only or name in options.only}
    packages = _packages()
    sides = ["ours", "vllm"] if options.whose == "both" else [options.whose]
    with tempfile.TemporaryDirectory(prefix="vllm-tests-") as folder:
        copy = Path(folder)
        _copy(Path(options.source), copy)
        for side in sides:
            for name, run in chosen.items():
                plan = {"model": _tiny_model(), "names": listed["names"], "without": run.get("without", [])}
                _run(copy, packages, side, name, run["files"], plan)
    return _report(chosen, sides)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.vllm_tests", description=__doc__)
    parser.add_argument("source")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--whose", choices=("ours", "vllm", "both"), default="both")
    return parser.parse_args()


def _tiny_model() -> str:
    return str(resolve("tiny-omni").spec.stage("thinker").model)


def _packages() -> Path:
    """What vLLM's tests import and our own environment must not have: pytest plugins load by themselves."""
    target = OUT / "site"
    if not target.exists():
        wanted = Path(__file__).with_name("requirements.txt")
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", str(target), "-r", str(wanted)], check=True)
    return target


def _copy(source: Path, copy: Path) -> None:
    shutil.copytree(source / "tests", copy / "tests")
    (copy / "pytest.ini").write_text(_INI)
    for path in copy.glob("tests/v1/**/test_*.py"):
        path.write_text(path.read_text().replace(_ONLY_CUDA, "if False:\n    pytest.skip("))


def _run(copy: Path, packages: Path, side: str, name: str, files: list[str], plan: Mapping[str, Any]) -> None:
    results, log = OUT / f"{name}-{side}.xml", OUT / f"{name}-{side}.log"
    (copy / "plan.json").write_text(json.dumps(plan))
    environment = os.environ | {
        "PYTHONPATH": f"{copy}:{ROOT}:{packages}",
        "OMNI_VLLM_TESTS": side,
        "OMNI_VLLM_TESTS_PLAN": str(copy / "plan.json"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tools.vllm_tests._plugin", "-p", "no:trio"]
    results.unlink(missing_ok=True)
    with log.open("w") as out:
        paths = [f"tests/{path}" for path in files]
        running = subprocess.Popen(
            [*command, f"--junitxml={results}", *paths], cwd=copy, env=environment, stdout=out, stderr=out
        )
        try:
            running.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            running.terminate()
            running.wait()


def _outcomes(name: str, side: str) -> dict[str, str]:
    path = OUT / f"{name}-{side}.xml"
    if not path.exists():
        return {}
    found = {}
    for case in ET.parse(path).iter("testcase"):
        kinds = [child.tag for child in case]
        worst = next((kind for kind in ("error", "failure", "skipped") if kind in kinds), "passed")
        found[f"{case.get('classname')}::{case.get('name')}"] = worst
    return found


def _report(chosen: Mapping[str, Any], sides: list[str]) -> int:
    """Print each file's numbers, and every test in which the two differ."""
    differ = 0
    for name in chosen:
        outcomes = {side: _outcomes(name, side) for side in sides}
        for path in chosen[name]["files"]:
            module = "tests." + path.removesuffix(".py").replace("/", ".")
            print(path)
            for side in sides:
                print(f"  {side:5} {_numbers([o for test, o in outcomes[side].items() if _of(module, test)])}")
            if len(sides) == 2:
                differ += _differences(module, outcomes)
    return 1 if differ else 0


def _of(module: str, test: str) -> bool:
    return test.startswith((f"{module}::", f"{module}."))


def _numbers(outcomes: list[str]) -> str:
    kinds = ("passed", "failure", "error", "skipped")
    return ", ".join(f"{outcomes.count(kind)} {kind}" for kind in kinds if kind in outcomes) or "not run"


def _differences(module: str, outcomes: Mapping[str, Mapping[str, str]]) -> int:
    """How many tests ours does worse in."""
    worse = 0
    for test in sorted(outcomes["ours"].keys() | outcomes["vllm"].keys()):
        ours, theirs = (outcomes[side].get(test, "not run") for side in ("ours", "vllm"))
        if _of(module, test) and ours != theirs:
            worse += theirs == "passed"
            print(f"    {test.removeprefix(module)}: ours {ours}, vLLM's {theirs}")
    return worse


if __name__ == "__main__":
    sys.exit(main())
