"""The batch of a GenerationEngine, without a process: what is called when, and who fails with whom."""

from __future__ import annotations

import itertools
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_actors._errors import InvalidRequest
from omni_actors.engines._batcher import Batcher, Status
from omni_actors.engines._generator import Unloadable, load_generator
from omni_actors.engines.generation import Chunk, Step
from omni_actors.wire import omni as wire


class Host:
    """The I/O thread's part, played by the test."""

    def __init__(self, generator, max_batch=8):
        self.inbox, self.said, self.status, self.aside = deque(), [], Status(), []
        self.now = 1000.0
        self.batcher = Batcher(
            generator, max_batch=max_batch, inbox=self.next, post=self.post, status=self.status,
            aside=self.begin_call, clock=lambda: self.now,
        )  # fmt: skip

    def next(self):
        return self.inbox.popleft() if self.inbox else None

    def post(self, message, frames):
        assert wire.decode(frames) == message
        self.said.append(message)

    def begin_call(self, work):
        """The call's own thread: at once, or when the test says so."""
        if self.aside is None:
            self.call = work
        else:
            self.inbox.append(work())

    def submit(self, *keys, prompt=3, **more):
        for key in keys:
            self.inbox.append(wire.Submit(key, prompt, **more))

    def run(self, rounds=100):
        for _ in range(rounds):
            self.batcher.round()
            if self.batcher.idle and not self.inbox:
                return

    def of(self, key):
        return [message for message in self.said if getattr(message, "key", None) == key]

    def kinds(self, key):
        return [type(message).__name__ for message in self.of(key)]


class Count:
    """``prompt`` chunks; what ``hook`` does at a chunk is up to the test."""

    def __init__(self, hook=lambda item, number: None):
        self.hook, self.started, self.closed, self.steps = hook, [], [], []

    def step(self, batch):
        self.steps.append([item.key for item in batch])

    def start(self, item):
        self.started.append(item.key)
        try:
            for number in range(item.prompt):
                self.hook(item, number)
                yield Chunk(meta={"n": number})
        finally:
            self.closed.append(item.key)


def test_an_item_streams_finishes_and_is_released():
    host = Host(Count())
    host.submit("a", prompt=2)
    host.run()
    assert host.of("a") == [
        wire.Output("a", 0, meta={"n": 0}),
        wire.Output("a", 1, meta={"n": 1}),
        wire.Output("a", 2, finished=True, finish_reason="stop"),
        wire.Released("a"),
    ]
    assert host.batcher.idle


def test_the_last_chunk_may_say_that_it_is_the_last():
    class Once:
        def start(self, item):
            yield Chunk(meta={"n": 0}, finished=True, finish_reason="length")
            raise AssertionError("never asked again")

    host = Host(Once())
    host.submit("a")
    host.run()
    assert host.of("a")[0] == wire.Output("a", 0, meta={"n": 0}, finished=True, finish_reason="length")
    assert host.kinds("a") == ["Output", "Released"]


def test_items_join_between_rounds_up_to_the_batch():
    count = Count()
    host = Host(count, max_batch=2)
    host.submit("a", "b", "c", prompt=2)
    host.run(1)
    host.submit("d", prompt=1)
    host.run()
    assert count.steps == [["a", "b"]] * 3 + [["c", "d"]] * 2 + [["c"]]


def test_a_class_that_is_not_joinable_gets_whole_batches():
    count = Count()
    count.joinable = False
    host = Host(count)
    host.submit("a", prompt=1)
    host.run(1)
    host.submit("b", prompt=1)
    host.run()
    assert count.steps == [["a"], ["a"], ["b"], ["b"]]


def test_lower_priority_goes_first_then_arrival():
    count = Count()
    host = Host(count, max_batch=1)
    host.submit("late", "later", priority=5)
    host.submit("first", priority=-1)
    host.run()
    assert count.started == ["first", "late", "later"]


def test_an_abort_acts_before_the_next_chunk_of_the_same_round():
    count = Count(
        lambda item, number: host.inbox.append(wire.Abort(["b"])) if item.key == "a" and number == 1 else None
    )
    host = Host(count)
    host.submit("a", "b")
    host.run()
    assert host.kinds("b") == ["Output", "Released"]
    assert count.closed == ["b", "a"]
    assert host.kinds("a") == ["Output"] * 4 + ["Released"]


def test_an_item_that_waits_is_aborted_without_being_started():
    count = Count()
    host = Host(count, max_batch=1)
    host.submit("a", "b", "c")
    host.run(1)
    host.inbox.append(wire.Abort(["b", "unknown"]))
    host.run()
    assert host.kinds("b") == ["Released"]
    assert count.started == ["a", "c"]


def fail_second(item, number):
    if item.key == "b" and number == 1:
        raise ValueError("b is odd\nsecond line")


def test_what_one_item_raises_fails_it_alone(capsys):
    host = Host(Count(fail_second))
    host.submit("a", "b", "c")
    host.run()
    assert host.kinds("b") == ["Output", "Failed"]
    assert host.of("b")[-1].error == "ValueError: b is odd"
    assert host.kinds("a") == host.kinds("c") == ["Output"] * 4 + ["Released"]
    assert "fail_second" in capsys.readouterr().err


def test_what_start_raises_fails_it_alone():
    class Picky:
        def start(self, item):
            if item.key == "b":
                raise ValueError("no")
            return iter([Chunk()])

    host = Host(Picky())
    host.submit("a", "b")
    host.run()
    assert host.kinds("b") == ["Failed"]
    assert host.kinds("a") == ["Output", "Output", "Released"]


def test_what_step_raises_fails_the_batch_and_no_more():
    class Doomed(Count):
        def step(self, batch):
            if len(batch) == 2:
                raise MemoryError

    doomed = Doomed()
    host = Host(doomed, max_batch=2)
    host.submit("a", "b", "c")
    host.run()
    assert host.of("a") == [wire.Failed("a", "MemoryError: no further words")]
    assert host.kinds("b") == ["Failed"]
    assert host.kinds("c") == ["Output"] * 4 + ["Released"]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("text", "gave a str, not a Chunk"),
        (Chunk(meta={"x": object()}), "cannot send a value of type object"),
        (Chunk(meta={1: 2}), "Expected `str`"),
        (Chunk(tensors={"x": "text"}), "cannot travel"),
        (Chunk(finish_reason=5, finished=True), "Expected `str"),
    ],
)
def test_a_chunk_that_the_host_could_not_read_fails_its_item(made, words):
    class Wrong:
        def start(self, item):
            yield made if item.key == "b" else Chunk()

    host = Host(Wrong())
    host.submit("a", "b")
    host.run()
    assert host.kinds("b") == ["Failed"]
    assert words in host.of("b")[0].error
    assert host.kinds("a") == ["Output", "Output", "Released"]


def test_an_iterator_that_will_not_close_is_left_all_the_same(capsys):
    class Stubborn:
        def start(self, item):
            try:
                while True:
                    yield Chunk()
            finally:
                raise OSError("cannot close")

    host = Host(Stubborn())
    host.submit("a")
    host.run(1)
    host.inbox.append(wire.Abort(["a"]))
    host.run()
    assert host.kinds("a") == ["Output", "Released"]
    assert "cannot close" in capsys.readouterr().err


def test_calls_between_rounds():
    class Callable(Count):
        def add(self, a, b):
            return a + b

        def strange(self):
            return object()

    host = Host(Callable())
    for number, (method, args) in enumerate(
        [("add", [1, 2]), ("add", [1]), ("missing", []), ("_private", []), ("strange", [])]
    ):
        host.inbox.append(wire.Call(number, method, args))
    host.run()
    values = [(result.value, result.error) for result in host.said]
    assert values[0] == (3, None)
    for (_, error), words in zip(
        values[1:], ["required positional", "no method 'missing'", "no method '_private'", "cannot send"], strict=True
    ):
        assert words in error


def test_a_call_stops_the_rounds_and_not_the_aborts():
    class Slow(Count):
        def load(self):
            return "loaded"

    host = Host(generator := Slow())
    host.submit("a", "b")
    host.run(1)
    host.aside = None
    host.inbox.append(wire.Call(1, "load"))
    host.batcher.round()
    assert host.batcher.idle, "the working thread only listens now"
    steps = list(generator.steps)
    host.batcher.take(wire.Abort(["a"]))
    assert host.kinds("a") == ["Output", "Released"]
    assert generator.steps == steps
    host.batcher.take(host.call())
    assert host.said[-1] == wire.CallResult(1, "loaded")
    host.run()
    assert host.kinds("b")[-1] == "Released"


def test_steps_are_told_a_few_times_a_second_or_shown():
    class Painter:
        def start(self, item):
            for number in range(50):
                host.now += 0.01 if item.key == "quiet" else 0
                yield Step(done=number, total=50, shown=item.params.get("progress", False))
            yield Chunk(meta={"done": True}, finished=True)

    host = Host(Painter())
    host.submit("quiet")
    host.submit("shown", params={"progress": True})
    host.run()
    assert [message.done for message in host.of("shown")[:-2]] == list(range(50))
    assert [message.done for message in host.of("quiet")[:-2]] == [20, 41], "not before there is something to tell"
    assert host.kinds("quiet")[-2:] == ["Output", "Released"]
    assert host.status.made == 102


def test_a_class_says_what_fits():
    class Large(Count):
        def fits(self, item, batch):
            return item.prompt + sum(each.prompt for each in batch) <= 4

    host = Host(generator := Large())
    for key, size in (("a", 3), ("b", 2), ("c", 9)):
        host.submit(key, prompt=size)
    host.run()
    assert all(set(step) in ({"a"}, {"b"}, {"c"}) for step in generator.steps)
    assert [host.kinds(key)[-1] for key in "abc"] == ["Released"] * 3


def test_what_the_class_refuses_is_the_callers_fault(capsys):
    class Strict(Count):
        def start(self, item):
            raise InvalidRequest("0 steps: at least 1")

    host = Host(Strict())
    host.submit("a")
    host.run()
    assert host.of("a") == [wire.Failed("a", "0 steps: at least 1", invalid=True)]
    assert not capsys.readouterr().err


def test_busy_only_while_inside_the_class():
    inside = []
    host = Host(Count(lambda item, number: inside.append(host.status.busy_since)))
    host.submit("a", prompt=1)
    host.run()
    assert inside[0] is not None
    assert host.status.busy_since is None
    assert host.status.made == 2


class Long:
    """One step works on all that is there, in three passes, and listens between them."""

    def __init__(self, between):
        self.between, self.wanted = between, {}

    def hear(self, listen):
        self.listen = listen

    def step(self, batch):
        for number in range(3):
            self.between(number)
            self.listen()
            if not self.wanted:
                raise RuntimeError("nobody wants it")

    def start(self, item):
        self.wanted[item.key] = True
        return Wanted(self.wanted, item.key)


class Wanted:
    """The one chunk of an item. A generator that was never begun would not hear of its end."""

    def __init__(self, wanted, key):
        self.wanted, self.key = wanted, key

    def __iter__(self):
        return self

    def __next__(self):
        return Chunk(meta={"n": 1}, finished=True)

    def close(self):
        del self.wanted[self.key]


def test_a_long_step_listens_to_aborts():
    passes = []

    def between(number):
        passes.append(number)
        if number == 1:
            host.inbox.append(wire.Abort(["a"]))

    host = Host(Long(between))
    host.submit("a")
    host.run()
    assert passes == [0, 1]
    assert host.kinds("a") == ["Released"]


def test_a_step_that_listens_is_alive():
    """Each time it begins anew, and it is still inside while it closes what was aborted."""
    seen = []

    def between(number):
        seen.append((host.status.busy_since, host.status.made))
        if number == 0:
            host.inbox.append(wire.Abort(["a"]))

    host = Host(Long(between))
    clock = itertools.count(1.0)
    host.batcher._inside._clock = lambda: next(clock)
    host.submit("a", "b")
    host.run()
    since, made = zip(*seen, strict=True)
    assert None not in since
    assert list(since) == sorted(set(since))
    assert list(made) == [0, 1, 2]
    assert host.status.busy_since is None
    assert (host.kinds("a"), host.kinds("b")[-1]) == (["Released"], "Released")


@settings(deadline=None)
@given(
    plans=st.lists(
        st.tuples(st.integers(0, 4), st.integers(-1, 4), st.integers(0, 6), st.none() | st.integers(0, 8)), max_size=10
    ),
    max_batch=st.integers(1, 4),
    joinable=st.booleans(),
)
def test_every_item_ends_once_whatever_happens(plans, max_batch, joinable):
    """I11, I6: (chunks, raise at, submitted in round, aborted in round) per item."""

    def hook(item, number):
        if number == plans[int(item.key)][1]:
            raise ValueError

    count = Count(hook)
    count.joinable = joinable
    host = Host(count, max_batch)
    for now in range(100):
        for key, (chunks, _, begin, abort) in enumerate(plans):
            if begin == now:
                host.submit(str(key), prompt=chunks)
            if abort == now:
                host.inbox.append(wire.Abort([str(key)]))
        host.run(1)
    assert host.batcher.idle
    for key, (chunks, *_) in enumerate(plans):
        *outputs, end = host.of(str(key))
        assert isinstance(end, wire.Released | wire.Failed)
        assert [output.seq for output in outputs] == list(range(len(outputs)))
        assert len(outputs) <= chunks + 1
    assert all(len(step) <= max_batch for step in count.steps)
    assert sorted(count.started) == sorted(count.closed)


@pytest.mark.parametrize(
    ("path", "args", "words"),
    [
        ("nowhere:Thing", {}, r"nowhere:Thing cannot be started: ModuleNotFoundError: No module named 'nowhere'"),
        ("json:Thing", {}, "json:Thing cannot be started: AttributeError: .*Thing"),
        ("json:JSONDecoder", {"speed": 1}, "TypeError: .*unexpected keyword argument 'speed'"),
        ("json:JSONDecoder", {}, "json:JSONDecoder cannot be started: it has no method start"),
    ],
)
def test_a_class_that_cannot_be_made_is_named(path, args, words):
    with pytest.raises(Unloadable, match=words):
        load_generator(path, args)
