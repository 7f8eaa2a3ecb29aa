"""Pictures for clients, and from them: the runtime's uint8 tensors as png, jpeg or webp, and files as tensors.

What comes in was measured by its header before (``_media``); here it is decoded, and must be what the header said.
Everything here takes milliseconds of the processor: it belongs into a thread. Nothing holds state.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ._refusals import HttpError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Form", "content_type", "decoded_mask", "decoded_picture", "encoded_picture"]

Form = Literal["png", "jpeg", "webp"]
_READABLE = ("PNG", "JPEG", "WEBP", "GIF")


def content_type(form: Form) -> str:
    """The MIME type."""
    return f"image/{form}"


def encoded_picture(image: Any, form: Form, compression: int | None = None) -> bytes:
    """``image``: uint8, shape (height, width, 3), a Tensor or an ndarray. ``compression``: 0 to 100 (the default), the
    quality of jpeg and webp; png is always whole.
    """
    from PIL import Image

    array = image.numpy() if hasattr(image, "numpy") else np.asarray(image)
    file = io.BytesIO()
    quality = {} if form == "png" else {"quality": 100 if compression is None else compression}
    Image.fromarray(np.ascontiguousarray(array)).save(file, form.upper(), **quality)
    return file.getvalue()


def decoded_picture(raw: bytes, max_pixels: int, param: str) -> np.ndarray[Any, Any]:
    """uint8, shape (height, width, 3): upright, without transparency, the first frame of a film.

    Raises HttpError (400) for what is no picture, is cut off, or is larger than its header said.
    """
    return np.asarray(_opened(raw, max_pixels, param).convert("RGB"))


def decoded_mask(raw: bytes, max_pixels: int, param: str) -> np.ndarray[Any, Any]:
    """uint8, shape (height, width): 255 is to be painted anew. OpenAI marks that by transparency; in a mask without any
    it is what is white. Raises HttpError as above.
    """
    picture = _opened(raw, max_pixels, param)
    if not picture.has_transparency_data:
        return np.asarray(picture.convert("L"))
    return 255 - np.asarray(picture.convert("RGBA"))[..., 3]


def _opened(raw: bytes, max_pixels: int, param: str) -> Image.Image:
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(raw), formats=_READABLE) as picture:
            if picture.width * picture.height > max_pixels:
                raise HttpError(400, f"this image has more than the {max_pixels} pixels that are allowed", param=param)
            return ImageOps.exif_transpose(picture)
    except HttpError:
        raise
    except Exception as error:  # its decoders raise whatever they like at what they cannot read
        raise HttpError(400, "this image cannot be read: it is broken, or not whole", param=param) from error
