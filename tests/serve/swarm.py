"""Many clients of one server at once, on plain sockets, each of which leaves when it likes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs

STREAM = {
    "messages": [{"role": "user", "content": "What is two plus three?"}],
    "modalities": ["text", "audio"],
    "stream": True,
}


@attrs.frozen
class Told:
    """What a client got: the status, the body, and when (the loop's time)."""

    status: int
    body: bytes
    at: float
    complete: bool


async def ask(url: str, document: Any, *, stop_after: int | None = None, path: str = "/v1/chat/completions") -> Told:
    """Ask, read ``stop_after`` lines (None: all), and close the connection."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1 << 26)
    body = json.dumps(document).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    try:
        writer.write(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
        lines: list[bytes] = []
        while (stop_after is None or len(lines) < stop_after) and (line := await reader.readline()):
            lines.append(line)
        status = int(lines[0].split()[1]) if lines else 0
        told = b"".join(lines)
        return Told(status, told, asyncio.get_running_loop().time(), told.endswith(b"0\r\n\r\n"))
    finally:
        writer.close()


async def storm(url: str, documents: list[Any], leave_after: list[int | None]) -> list[Told]:
    """All of them at once."""
    asking = [ask(url, document, stop_after=after) for document, after in zip(documents, leave_after, strict=True)]
    return await asyncio.gather(*asking)


def resident_mib(pid: int) -> float:
    """Memory of one process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024
