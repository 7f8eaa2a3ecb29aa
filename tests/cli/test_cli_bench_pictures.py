"""What ``bench diffusion`` and ``bench branch`` make of what they measured, and that they measure the real thing."""

from __future__ import annotations

import pytest
import trio

from omni_actors._errors import OmniError
from omni_actors.cli._bench import BenchOptions, judge
from omni_actors.cli.benches import branch, diffusion
from omni_actors.cli.benches._painters import STEPS, looks


def times(*, together=(1.0, 3.0), alone=(0.2, 0.2), worst=0):
    return diffusion.Times(
        ours_together=together[0], reference_together=together[1],
        ours_alone=alone[0], reference_alone=alone[1], worst=worst,
    )  # fmt: skip


def aborts(*returns, steps=1):
    return [diffusion.Abort(return_s=seconds, steps_after=steps) for seconds in returns]


def test_diffusion_compares_pictures_per_second_and_the_time_of_one():
    result = diffusion.summary([times(alone=(0.2 + 0.002 * STEPS, 0.2))] * 15, aborts(0.004, 0.006, 0.02))
    assert result.metrics["images_ratio_8"] == pytest.approx(3.0)
    assert result.metrics["overhead_ms_per_step"] == pytest.approx(2.0)
    assert result.metrics["latency_ratio_1"] == pytest.approx(1.2)
    assert result.metrics["abort_ms_p50"] == pytest.approx(6.0)
    assert result.metrics["abort_ms_max"] == pytest.approx(20.0)
    assert judge(result) == {
        "images_ratio_8": "holds", "latency_ratio_1": "fails", "overhead_ms_per_step": "fails",
        "abort_ms_over_step_p50": "holds", "abort_steps_max": "holds",
    }  # fmt: skip


def test_diffusion_fails_where_steps_go_on_after_an_abort():
    result = diffusion.summary([times()] * 15, aborts(0.004, steps=3))
    assert judge(result)["abort_steps_max"] == "fails"


def test_diffusion_takes_no_numbers_of_different_pictures():
    with pytest.raises(OmniError, match="differ from diffusers' own by 2 of 255"):
        diffusion.summary([times()] * 14 + [times(worst=2)], aborts(0.004))


def test_a_picture_is_known_by_every_sixteenth_pixel():
    assert looks(bytes(range(96)) + b"x" * 48) == [24, 72, ord("x")]


def test_branch_compares_with_the_longer_path():
    walls = [branch.Walls(all=0.6, hear=0.4, see=0.5)] * 15
    result = branch.summary(walls)
    assert result.metrics["wall_ratio"] == pytest.approx(1.2)
    assert result.metrics["of_the_sum"] == pytest.approx(0.6 / 0.9)
    assert judge(result) == {"wall_ratio": "fails"}


@pytest.mark.process
def test_diffusion_measures_real_pictures(monkeypatch):
    monkeypatch.setattr(diffusion, "TOGETHER", 2)
    monkeypatch.setattr(diffusion, "ALONE", 1)
    monkeypatch.setattr(diffusion, "ABORTS", 1)
    said = []
    result = trio.run(diffusion.run, BenchOptions(pairs=2, progress=said.append))
    assert result.metrics["images_ratio_8"] > 0
    assert 0 <= result.metrics["abort_steps_max"] <= 10
    assert len(result.samples["abort_ms"]) == 2
    assert len(said) == 2
