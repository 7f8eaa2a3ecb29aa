"""The page is in the package that people install."""

from __future__ import annotations

import zipfile
from pathlib import Path

import omni_actors_asyncio
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
WEB = "omni_actors_asyncio/server/web"


def test_the_wheel_has_the_page(tmp_path):
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as packed:
        inside = {Path(name).name for name in packed.namelist() if name.startswith(f"{WEB}/")}
    assert inside == {file.name for file in (Path(omni_actors_asyncio.__file__).parent / "server/web").iterdir()}
    assert {"index.html", "page.js", "page.css"} <= inside
