"""The fake painter's licence: the same scenarios on the fake's process and on the real engine host with a class in it
give the same frames, per request the same kinds in the same order, both ways. Repeated ones count once.

The class walks instead of denoising; what is compared is all around it.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import attrs
import pytest

from omni_actors.config import StageSpec
from omni_actors.testing.chaos import private_base
from omni_actors.testing.rigs import SHORT, omni_stage, pipeline
from omni_actors.testing.sim._history import Accepted, Got, Left, StageSaid, Wire
from omni_actors.testing.sim._scenario import Submit

from .licence import Watched, ends, played

pytestmark = pytest.mark.process

STAGE, STEPS, STEP_S = "painter", 6, 0.05
WITHIN_S = 60.0
QUIET = attrs.evolve(SHORT, silence_s=30.0, hang_s=60.0)  # no pings of their own: those are no frames of a request
SHOWN = {"progress": True}


def fake_pipeline(**told):
    return pipeline(
        omni_stage(STAGE, output="image", steps=STEPS, chunks=1, chunk_s=STEP_S, capacity=2, deadlines=QUIET, **told)
    )


def real_pipeline():
    stage = StageSpec(
        name=STAGE, engine="diffusion", model="generation_classes:Painter", output="image", deadlines=QUIET,
        engine_args={"max_batch": 2, "step_s": STEP_S},
    )  # fmt: skip
    return pipeline(stage)


def ask(request, steps=STEPS, params=None, **more):
    # The class takes its number of steps from the prompt, the fake from its params.
    params = {**(params or {}), "num_inference_steps": steps}
    return Submit(request=request, prompt={"name": request, "steps": steps}, params=params, **more)


async def scenarios(driver: Watched) -> None:
    async def over(*asked) -> None:
        for op in asked:
            driver.do(op)
        for op in asked:
            await driver.seen(Left, request=op.request)

    await over(ask("is painted"))
    await over(ask("is shown", params=SHOWN))
    await over(ask("leaves at its second step", params=SHOWN, leave_after=2))
    await over(ask("one of three"), ask("the other"), ask("the one that waits", steps=2, params=SHOWN))
    await over(ask("no steps", steps=0))
    await over(ask("in one step", steps=1, params=SHOWN))
    await over(ask("is asked for twice", params={"n": 2}))


def frames(history):
    """What was under way when an abort was sent is not compared: whether there was anything is a matter of time.

    Nor is progress that nobody asked to see: of that one is sent now and then.
    """
    names = {event.key: event.request for event in history.of(Accepted)}
    shown = {event.request for event in history.of(Got) if event.step}
    found = {}
    for event in history.of(Wire):
        if not event.key:
            continue
        request, _, rest = event.key.rpartition("-0")
        seen = found.setdefault(f"{names[request]}{rest}", [])
        late = event.what in ("output", "progress") and ("sent", "abort", ()) in seen
        if not late and (event.what != "progress" or names[request] in shown):
            seen.append((event.way, event.what, event.data if event.what in ("progress", "failed") else ()))
    return {name: [frame for frame, _ in itertools.groupby(seen)] for name, seen in found.items()}


def got(history):
    return {
        name: [event.step for event in history.of(Got) if event.request == name]
        for name in ("is painted", "is shown", "leaves at its second step", "in one step", "is asked for twice")
    }


@pytest.fixture(scope="module")
def both():
    classes = pytest.MonkeyPatch()
    with private_base(), classes.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        return tuple(played(spec, scenarios, WITHIN_S) for spec in (fake_pipeline(), real_pipeline()))


@pytest.mark.parametrize("what", [frames, ends, got])
def test_the_fake_says_what_the_real_one_says(both, what):
    fake, real = both
    assert what(fake) == what(real)


def test_the_scenarios_show_what_they_are_for(both):
    fake, real = both
    sent, heard = "sent", "heard"
    steps = [(heard, "progress", (n, STEPS)) for n in range(1, STEPS)]
    made = [(heard, what, ()) for what in ("output", "finished", "released")]
    assert frames(real)["is painted"] == [(sent, "add", ()), *made]
    assert frames(real)["is shown"] == [(sent, "add", ()), *steps, *made]
    assert frames(real)["leaves at its second step"] == [
        (sent, "add", ()), *steps[:2], (sent, "abort", ()), (heard, "released", ()),
    ]  # fmt: skip
    assert frames(real)["no steps"] == [(sent, "add", ()), (heard, "failed", (1,))]
    assert ends(real)["no steps"] == ("failed", "InvalidRequest")
    assert not [event for event in fake.of(StageSaid) if event.error]
