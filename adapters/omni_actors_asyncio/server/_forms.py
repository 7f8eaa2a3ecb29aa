"""``multipart/form-data`` bodies, which the gate has read and bounded: their fields, and their files in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from ._refusals import HttpError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.datastructures import FormData

__all__ = ["MultipartForm", "read_form"]

_MAX_FILES, _MAX_FIELDS, _MAX_FIELD_BYTES = 32, 64, 1 << 20


@attrs.frozen
class MultipartForm:
    """``fields``: texts by name. ``files``: what was sent as files, by name, in their order."""

    fields: Mapping[str, str]
    files: Mapping[str, list[bytes]]


async def read_form(body: bytes, content_type: str) -> MultipartForm:
    """Raises HttpError (400) for what is no form, for a field that is there twice, and for more than a form may have.

    No file of it ever lies on a disk.
    """
    from starlette.datastructures import Headers
    from starlette.formparsers import MultiPartException, MultiPartParser

    if not content_type.lower().startswith("multipart/form-data"):
        raise HttpError(400, "the body is a form: multipart/form-data, with the picture as a file in it")

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(
        Headers({"content-type": content_type}), pieces(),
        max_files=_MAX_FILES, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES,
    )  # fmt: skip
    parser.spool_max_size = len(body) + 1
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        words = error.message if isinstance(error, MultiPartException) else "its parts cannot be told apart"
        raise HttpError(400, f"the form cannot be read: {words}") from error
    try:
        return await _taken(form)
    finally:
        await form.close()


async def _taken(form: FormData) -> MultipartForm:
    fields: dict[str, str] = {}
    files: dict[str, list[bytes]] = {}
    for name, value in form.multi_items():
        if not isinstance(value, str):
            files.setdefault(name, []).append(await value.read())
        elif name in fields:
            raise HttpError(400, f"the field {name[:200]!r} is there twice", param=name[:200])
        else:
            fields[name] = value
    return MultipartForm(fields, files)
