"""The conversation's promises under every schedule: what an engine may do, against what each lease may see."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from omni_actors.config.specs import StageSpec
from omni_actors.lifecycle.events import Produced
from omni_actors.stages.vllm._conversation import Conversation
from omni_actors.testing._core_kind import FakeFrontend
from omni_actors.testing._core_wire import ABORT, FakeOutput, FakeOutputs, FakeUtility

WHERE = {"stage": "t", "replica": 0, "generation": 1}


class Schedules(RuleBasedStateMachine):
    """Messages of the engine cross ours on the way: an engine hears an abort only when ``engine_hears`` runs."""

    keys = Bundle("keys")
    _number = 0

    def __init__(self):
        super().__init__()
        self.frontend = FakeFrontend(StageSpec(name="t", engine="fake-core"))
        codec, processor = self.frontend.codec(), self.frontend.processor()
        self.forgotten = []
        codec.forget = self.forgotten.append
        self.talk = Conversation(codec, processor, lambda hashes: None, WHERE)
        self.engine = set()  # what the engine runs
        self.wire = []  # our aborts and barriers, not yet heard
        self.answers = []  # the engine's answers, not yet received
        self.history = {}  # per key: "text", "finish", "release", "fail", and our own "abort"

    @rule(target=keys, text=st.booleans(), stream=st.booleans(), stop=st.booleans())
    def submit(self, text, stream, stop):
        self._number += 1
        key = f"k{self._number}"
        params = {"stop": ["."]} if stop else None
        (work,) = self.frontend.prepare([key], "p", params, stream=stream, text=text)
        assert self.talk.add(work)
        self.engine.add(key)
        self.history[key] = []
        return key

    @rule(data=st.data(), text=st.sampled_from(["a", ".", "a.b", ""]), finish=st.sampled_from([None, None, 0, 1, 2, 3]))
    def step(self, data, text, finish):
        if not self.engine:
            return
        keys = data.draw(st.lists(st.sampled_from(sorted(self.engine)), min_size=1, unique=True))
        outputs = [FakeOutput(key, [ord(c) for c in text], finish_reason=finish) for key in keys]
        if finish is not None:
            self.engine -= set(keys)
        self.receive(FakeOutputs(outputs=outputs))

    @rule(some=st.lists(keys, max_size=4))
    def abort(self, some):
        for key in self.talk.abort([*some, "unknown"]):
            self.history[key].append("abort")

    @rule()
    def flush(self):
        if self.talk.doomed:
            self.wire += self.talk.take_aborts()

    @rule()
    def ping(self):
        if (frames := self.talk.ping()) is not None:
            self.wire.append(frames)

    @rule()
    def engine_hears(self):
        if self.wire:
            kind, body = self.wire.pop(0)
            content = msgspec.msgpack.decode(body)
            if kind == ABORT:
                self.engine -= set(content)
            else:
                self.answers.append(FakeOutputs(utility_output=FakeUtility.answer(content[1], False)))

    @rule()
    def answered(self):
        if self.answers:
            self.receive(self.answers.pop(0))

    @rule(key=consumes(keys))
    def withdraw(self, key):
        """Its ADD never left: only sensible while nothing of it was heard, which is the socket's promise."""
        if self.history[key] == [] and key in self.engine:
            self.engine.discard(key)
            self.talk.withdraw(key)
            assert self.forgotten[-1:] == [key]
            self.record()

    def receive(self, step):
        self.talk.apply([[msgspec.msgpack.encode(step)]])
        self.record()

    def record(self):
        for event in self.talk.take():
            seen = self.history[event.key]
            if isinstance(event, Produced):
                seen.append("finish" if event.finished else "text")
                if event.released:
                    assert event.finished
                    seen.append("release")
                    assert event.key not in self.engine
            else:
                assert event.key not in self.engine, "released before the engine forgot it"
                seen.append("release" if type(event).__name__ == "Released" else "fail")

    @invariant()
    def each_lease_ends_once_and_nothing_follows(self):
        """I3, I11"""
        for seen in self.history.values():
            assert seen.count("finish") <= 1
            ends = [i for i, what in enumerate(seen) if what in ("release", "fail")]
            assert len(ends) <= 1
            assert not ends or ends[0] == len(seen) - 1
            if "abort" in seen:
                assert set(seen[seen.index("abort") + 1 :]) <= {"release"}
            if "finish" in seen:
                assert set(seen[seen.index("finish") + 1 :]) <= {"release"}

    @invariant()
    def it_lives(self):
        assert self.talk.verdict is None

    def teardown(self):
        """I12: once the engine has answered everything, nothing is left and every lease has ended."""
        self.abort(list(self.history))
        self.flush()
        while self.wire or self.answers:
            self.engine_hears()
            self.answered()
            self.flush()
        self.each_lease_ends_once_and_nothing_follows()
        assert not self.talk.owes
        for seen in self.history.values():
            assert seen
            assert seen[-1] in ("release", "fail")


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
