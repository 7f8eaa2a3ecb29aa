"""The order of the whole suite: what starts vLLM engines comes last, the tests that share one set of them at the end.

So the shared engines, children of this process, are not there while other tests count children, files and threads.
"""

from __future__ import annotations

import asyncio

import pytest
import trio_asyncio

trio_asyncio._loop._FakedPolicy.policy = asyncio.DefaultEventLoopPolicy()
"""Or else ``asyncio.run`` means a loop of trio-asyncio's from the moment that any test has imported it."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (item.get_closest_marker("engine") is not None, "tests/engines/" in str(item.path)))
