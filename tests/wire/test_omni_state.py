"""The state tables of the omni stage wire: two sides that talk never blame each other, and every lease ends once."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from omni_actors._errors import IllegalTransition, ProtocolError
from omni_actors.wire import omni as wire
from omni_actors.wire.omni import LeaseState, State


def serving():
    host, engine = wire.HostSide(), wire.EngineSide()
    for sender, receiver, message in (
        (engine, host, wire.Hello()),
        (host, engine, wire.Hello()),
        (engine, host, wire.Ready()),
    ):
        sender.send(message)
        receiver.receive(message)
    assert host.state is engine.state is State.SERVING
    return host, engine


def test_nothing_is_said_before_hello():
    host = wire.HostSide()
    with pytest.raises(ProtocolError, match="Ready in state hello"):
        host.receive(wire.Ready())
    with pytest.raises(IllegalTransition, match="Submit in state hello"):
        host.send(wire.Submit("a", None))


def test_outputs_are_gapless():
    host, _ = serving()
    host.send(wire.Submit("a", None))
    host.receive(wire.Output("a", 0))
    for seq in (0, 2):
        with pytest.raises(ProtocolError, match=f"Output {seq} instead of 1"):
            host.receive(wire.Output("a", seq))
    host.receive(wire.Output("a", 1, finished=True))
    with pytest.raises(ProtocolError, match="finished"):
        host.receive(wire.Output("a", 2))


def test_a_finish_and_an_abort_may_cross():
    host, engine = serving()
    for say in (host.send, engine.receive):
        say(wire.Submit("a", None))
    last = wire.Output("a", 0, finished=True)
    engine.send(last)
    host.send(wire.Abort(["a"]))
    host.receive(last)
    engine.receive(wire.Abort(["a"]))
    assert (host.lease("a"), engine.lease("a")) == (LeaseState.ABORTING, LeaseState.FINISHED)
    for say in (engine.send, host.receive):
        say(wire.Released("a"))
    assert host.live == engine.live == 0


def test_an_abort_may_cross_the_release_itself():
    host, engine = serving()
    for say in (host.send, engine.receive):
        say(wire.Submit("a", None))
    engine.send(wire.Output("a", 0, finished=True))
    engine.send(wire.Released("a"))
    host.send(wire.Abort(["a"]))
    engine.receive(wire.Abort(["a"]))
    host.receive(wire.Output("a", 0, finished=True))
    host.receive(wire.Released("a"))
    assert host.live == engine.live == host.late_releases == 0


def test_a_release_that_nobody_asked_for_is_the_peers_fault():
    host, engine = serving()
    host.send(wire.Submit("a", None))
    with pytest.raises(ProtocolError, match="released in state submitted"):
        host.receive(wire.Released("a"))
    engine.receive(wire.Submit("a", None))
    with pytest.raises(IllegalTransition, match="released in state submitted"):
        engine.send(wire.Released("a"))


def test_a_late_release_is_counted_and_ignored():
    host, _ = serving()
    host.receive(wire.Released("a"))
    assert host.late_releases == 1
    with pytest.raises(ProtocolError, match="output in state gone"):
        host.receive(wire.Output("a", 0))


def test_a_refused_message_changes_nothing():
    host, engine = serving()
    for side, say in ((host, host.send), (engine, engine.receive)):
        say(wire.Submit("a", None))
        with pytest.raises((IllegalTransition, ProtocolError), match="Submit"):
            say(wire.Submit("a", None))
        assert side.lease("a") is LeaseState.SUBMITTED
    with pytest.raises(IllegalTransition, match="'b'"):
        host.send(wire.Abort(["a", "b"]))
    assert host.lease("a") is LeaseState.SUBMITTED


def test_a_stop_ends_every_lease():
    host, engine = serving()
    for key in "abc":
        submit = wire.Submit(key, None)
        host.send(submit)
        engine.receive(submit)
    host.send(wire.Abort(["b"]))
    engine.receive(wire.Abort(["b"]))
    last = wire.Output("c", 0, finished=True)
    engine.send(last)
    host.receive(last)
    engine.stop()
    for end in engine.ends():
        engine.send(end)
        host.receive(end)
    assert host.live == engine.live == 0


def test_calls_are_answered_once_and_bounded():
    host, engine = serving()
    for number in range(wire.MAX_PENDING_CALLS):
        host.send(wire.Call(number, "m"))
    with pytest.raises(IllegalTransition, match="unanswered"):
        host.send(wire.Call(5000, "m"))
    host.receive(wire.CallResult(3))
    with pytest.raises(ProtocolError, match="no such call"):
        host.receive(wire.CallResult(3))
    with pytest.raises(IllegalTransition, match="no such call"):
        engine.send(wire.CallResult(3))


def test_a_dead_side_holds_nothing():
    host, _ = serving()
    host.send(wire.Submit("a", None))
    host.die()
    assert host.live == 0
    assert not host.owed
    with pytest.raises(ProtocolError):
        host.receive(wire.Heartbeat())


class Conversation(RuleBasedStateMachine):
    """Host and engine with two pipes between them: whatever crosses, neither side ever raises, each lease ends once."""

    def __init__(self):
        super().__init__()
        self.host, self.engine = serving()
        self.down, self.up = deque(), deque()
        self.ends: dict[str, int] = {}
        self.count = 0

    def live(self, side, *states):
        return list(filter(lambda key: side.lease(key) in states, side.keys()))

    def host_says(self, message):
        self.host.send(message)
        self.down.append(message)

    def engine_says(self, message):
        self.engine.send(message)
        self.up.append(message)

    @rule()
    def submit(self):
        if self.host.state is State.SERVING:
            self.count += 1
            self.ends[f"k{self.count}"] = 0
            self.host_says(wire.Submit(f"k{self.count}", None))

    @rule(data=st.data())
    def abort(self, data):
        live = self.live(self.host, LeaseState.SUBMITTED, LeaseState.PRODUCING)
        if live and self.host.state is State.SERVING:
            self.host_says(wire.Abort(data.draw(st.lists(st.sampled_from(live), min_size=1, unique=True))))

    @rule(data=st.data(), finished=st.booleans())
    def output(self, data, finished):
        live = self.live(self.engine, LeaseState.SUBMITTED, LeaseState.PRODUCING)
        if live:
            key = data.draw(st.sampled_from(live))
            made = self.engine._leases[key].next_seq
            self.engine_says(wire.Output(key, made, finished=finished))

    @rule(data=st.data())
    def fail(self, data):
        if live := self.live(self.engine, LeaseState.SUBMITTED, LeaseState.PRODUCING, LeaseState.ABORTING):
            self.engine_says(wire.Failed(data.draw(st.sampled_from(live)), "so"))

    @rule(data=st.data())
    def release(self, data):
        if live := self.live(self.engine, LeaseState.FINISHED, LeaseState.ABORTING):
            self.engine_says(wire.Released(data.draw(st.sampled_from(live))))

    @precondition(lambda self: self.down)
    @rule(times=st.integers(1, 3))
    def engine_hears(self, times):
        for _ in range(min(times, len(self.down))):
            self.engine.receive(self.down.popleft())

    @precondition(lambda self: self.up)
    @rule(times=st.integers(1, 3))
    def host_hears(self, times):
        for _ in range(min(times, len(self.up))):
            message = self.up.popleft()
            self.host.receive(message)
            if isinstance(message, wire.Released | wire.Failed):
                self.ends[message.key] += 1

    @invariant()
    def no_late_release(self):
        assert self.host.late_releases == 0
        assert all(count <= 1 for count in self.ends.values())

    def teardown(self):
        """Whatever is on its way arrives, then a stop ends the rest: exactly one end per lease, nothing held."""
        self.engine_hears(times=len(self.down))
        self.engine.stop()
        for end in self.engine.ends():
            self.engine_says(end)
        self.host_hears(times=len(self.up))
        assert self.host.live == self.engine.live == 0
        assert all(count == 1 for count in self.ends.values()), self.ends


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
