"""What a request still gets after its first piece: in order, once it has its place, and never after its end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio
import trio.testing

from omni_actors._errors import InvalidRequest
from omni_actors.lifecycle import (
    Admission,
    Graph,
    Kind,
    LeaseEvent,
    Node,
    RequestTable,
    RequestView,
    advance,
    opened,
)
from omni_actors.runtime._pieces import Pieces
from omni_actors.runtime._work import Piece


class Stage:
    """One replica, of generation 1, whose client notes what it is given."""

    def __init__(self, *, cheap=True, heavy=False):
        self.given, self.cheap = [], cheap
        self.frontend = SimpleNamespace(heavy=lambda prompt: heavy)
        self.replicas = [SimpleNamespace(generation=1, client=SimpleNamespace(extend=self.given.append))]


class House:
    def __init__(self, *names, **stage):
        names = names or ("llm",)
        self.stage, self.threads = Stage(**stage), []
        self.table = RequestTable(Admission(10, 100), clock=trio.current_time, on_closed=lambda record: None)
        maker = SimpleNamespace(piece=lambda record, name, piece: piece.prompt or "the last")
        self.pieces = Pieces(dict.fromkeys(names, self.stage), self.table, maker, self.in_thread)
        plan = Graph(
            [Node(name=name, output=output) for name, output in zip(names, ("text", "audio"), strict=False)]
        ).plan(None)
        self.record = self.table.admit(RequestView("me", "hi", ("text",), {}), plan, slots=1, nbytes=2)
        self.table.begin(self.record)
        advance(self.record)

    async def in_thread(self, function, *args):
        await trio.lowlevel.checkpoint()
        self.threads.append(args[-1])
        return function(*args)

    def bind(self, generation=1):
        opened(self.record, "llm", 0, 1)
        lease = self.table.open_lease(self.record, "llm", 0, 0, 0, generation)
        self.pieces.look(self.record)
        return lease

    def abort(self):
        self.table.settle(self.record, Kind.ABORTED)
        self.pieces.look(self.record)


async def test_pieces_go_where_the_lease_is():
    house = House()
    house.bind()
    assert await house.pieces.give(house.record, Piece(prompt="one"))
    assert await house.pieces.give(house.record, Piece(last=True))
    assert (house.stage.given, house.threads) == (["one", "the last"], [])


async def test_a_piece_waits_until_the_request_has_its_place():
    house = House()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.pieces.give, house.record, Piece(prompt="one"))
        await trio.testing.wait_all_tasks_blocked()
        assert house.stage.given == []
        house.bind()
    assert house.stage.given == ["one"]


@pytest.mark.parametrize("waiting", [True, False])
async def test_what_has_ended_takes_nothing(waiting):
    house, answers = House(), []

    async def give():
        answers.append(await house.pieces.give(house.record, Piece(prompt="one")))

    async with trio.open_nursery() as nursery:
        if waiting:
            nursery.start_soon(give)
            await trio.testing.wait_all_tasks_blocked()
        house.abort()
        if not waiting:
            nursery.start_soon(give)
    assert (answers, house.stage.given, house.table.admission.bytes) == ([False], [], 0)


async def test_a_generation_that_is_over_is_not_spoken_to():
    """Its lease ends when the verdict is applied; the next generation knows nothing of it (I20)."""
    house = House()
    lease = house.bind(generation=0)
    assert await house.pieces.give(house.record, Piece(prompt="one"))
    assert house.stage.given == []
    house.table.step(lease, LeaseEvent.DIE)
    assert not await house.pieces.give(house.record, Piece(prompt="two"))


@pytest.mark.parametrize("stage", [{"heavy": True}, {"cheap": False}])
async def test_what_takes_long_is_prepared_in_a_thread_and_the_end_never(stage):
    house = House(**stage)
    house.bind()
    for piece in (Piece(prompt="one"), Piece(last=True)):
        assert await house.pieces.give(house.record, piece)
    assert (house.threads, house.stage.given) == ([Piece(prompt="one")], ["one", "the last"])


async def test_a_cancelled_piece_is_not_given():
    house = House()
    with trio.move_on_after(0):
        await house.pieces.give(house.record, Piece(prompt="one"))
    house.bind()
    assert (house.stage.given, house.table.admission.bytes) == ([], 2)


async def test_two_stages_that_take_the_prompt_are_one_too_many():
    house = House("llm", "other")
    with pytest.raises(InvalidRequest, match="one stage that takes the prompt"):
        await house.pieces.give(house.record, Piece(prompt="one"))
