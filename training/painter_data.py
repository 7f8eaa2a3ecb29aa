"""Scikit-learn's bundled digits, dealt to two hands: the painter learns from one, its judge from the other.

1,797 images of 8 by 8 pixels, ordered by writer. Every third goes to the judge, so that both know all the hands but
share no image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from omni_actors.pipelines.tiny_omni.painter import MARGIN, SCALE, TILE

INK = 16.0
"""The pixel value of full ink; paper is 0."""


@dataclass(frozen=True)
class Digits:
    """``images``: float32 (n, 8, 8) in [0, 1], 1 is ink. ``labels``: int64 (n,)."""

    images: np.ndarray
    labels: np.ndarray


def painter_digits() -> Digits:
    """Two thirds: what the painter is trained on."""
    return _dealt(judged=False)


def judge_digits() -> Digits:
    """One third: what the painter never saw."""
    return _dealt(judged=True)


def _dealt(*, judged: bool) -> Digits:
    every = load_digits()
    mine = (np.arange(len(every.target)) % 3 == 0) == judged
    return Digits((every.images[mine] / INK).astype(np.float32), every.target[mine].astype(np.int64))


class DigitJudge:
    """Reads 8 by 8 digits: a support vector machine trained on real ones, and on nothing that was painted."""

    def __init__(self) -> None:
        real = judge_digits()
        self._machine = SVC(gamma=0.08, C=10.0).fit(_flat(real.images), real.labels)

    def read(self, images: np.ndarray) -> list[int]:
        """The digit of each of ``images``, float (n, 8, 8) in [0, 1], 1 is ink."""
        return self._machine.predict(_flat(images)).tolist()

    def read_picture(self, picture: np.ndarray) -> str:
        """The number in one of the painter's pictures, shape (height, width, 3): floats in [0, 1], or uint8."""
        paper = picture[SCALE // 2 :: SCALE, SCALE // 2 :: SCALE, 0] / (255 if picture.dtype == np.uint8 else 1)
        rows, columns = slice(MARGIN, MARGIN + TILE), range(MARGIN, paper.shape[1], TILE + MARGIN)
        tiles = np.stack([1 - paper[rows, column : column + TILE] for column in columns])
        return "".join(str(digit) for digit in self.read(tiles))


def _flat(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1)
