"""A tensor as data: dtype, shape and bytes. Travels between processes without depending on any array library."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["DTYPES", "MAX_DIMS", "Tensor"]

DTYPES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8, "complex64": 8,
}  # fmt: skip
"""Every dtype of the wire and its bytes per element."""

MAX_DIMS = 16


class Tensor:
    """An immutable tensor: C order, little endian, ``data`` exactly as long as ``dtype`` and ``shape`` say.

    Raises ValueError for an unknown dtype, a negative or absurd shape, or data of another size.
    """

    __slots__ = ("data", "dtype", "shape")

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview

    def __init__(self, dtype: str, shape: tuple[int, ...], data: bytes | memoryview) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"unknown dtype {dtype!r}; known are {', '.join(DTYPES)}")
        if len(shape) > MAX_DIMS or any(size < 0 for size in shape):
            raise ValueError(f"absurd shape {shape[: MAX_DIMS + 1]}: at most {MAX_DIMS} dimensions, none negative")
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if size != (wanted := math.prod(shape) * DTYPES[dtype]):
            raise ValueError(f"{dtype} of shape {shape} takes {wanted} bytes, not {size}")
        for name, value in (("dtype", dtype), ("shape", tuple(shape)), ("data", data)):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Tensor is immutable; {name!r} cannot be set")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        same = (self.dtype, self.shape) == (other.dtype, other.shape)
        return same and bytes(self.data) == bytes(other.data)

    __hash__ = None  # type: ignore[assignment]  # compared by content, which may be large

    def __repr__(self) -> str:
        return f"Tensor({self.dtype}, shape={self.shape})"

    def __reduce__(self) -> Any:
        """Copies own their bytes: a memoryview cannot be copied."""
        return (Tensor, (self.dtype, self.shape, bytes(self.data)))

    @property
    def nbytes(self) -> int:
        """The size of ``data`` in bytes."""
        return math.prod(self.shape) * DTYPES[self.dtype]

    def numpy(self) -> Any:
        """A read-only ndarray over the same bytes; ``bfloat16``, which numpy lacks, is widened to float32 exactly."""
        import numpy as np

        if self.dtype == "bfloat16":
            wide = np.frombuffer(self.data, dtype="<u2").astype("<u4") << 16
            return wide.view("<f4").reshape(self.shape)
        array = np.frombuffer(self.data, dtype=np.dtype(self.dtype).newbyteorder("<")).reshape(self.shape)
        array.flags.writeable = False
        return array

    @staticmethod
    def from_numpy(array: Any) -> Tensor:
        """A snapshot of an ndarray, or what numpy can see as one. Raises ValueError for dtypes not on the wire."""
        import numpy as np

        seen = np.asarray(array)
        if seen.dtype.name not in DTYPES:
            raise ValueError(f"an array of dtype {seen.dtype.name} cannot travel; known are {', '.join(DTYPES)}")
        little = np.ascontiguousarray(seen, seen.dtype.newbyteorder("<"))  # three times as fast as tobytes is alone
        # tobytes copies: the caller may change its array while the bytes are still queued.
        return Tensor(seen.dtype.name, seen.shape, little.tobytes())
