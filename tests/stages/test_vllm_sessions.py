"""One lease whose input comes in pieces, against what an engine may say meanwhile. Real vLLM structs, no engine."""

from __future__ import annotations

import warnings

import attrs
import pytest

from omni_actors._errors import InvalidRequest
from omni_actors.lifecycle.events import LeaseFailed, Produced, Released
from omni_actors.pipelines.tiny_omni import pipeline
from omni_actors.stages.vllm._conversation import Conversation
from omni_actors.wire.vllm.meter import EngineCoreMeter

pytest.importorskip("vllm")

GREEDY = {"temperature": 0, "max_tokens": 3, "output_kind": 1}
KEY = "k-1"
ADD, ABORT = b"\x00", b"\x01"


@pytest.fixture(scope="module")
def frontend():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from omni_actors.stages.vllm._frontend import VllmFrontend

        return VllmFrontend(attrs.evolve(pipeline().stage("thinker"), transform=None, params={}))


class Session:
    """A conversation, and an engine that says what each test makes it say."""

    def __init__(self, frontend):
        self.frontend = frontend
        where = {"stage": "thinker", "replica": 0, "generation": 0}
        meter = EngineCoreMeter(lambda scheduler, iteration: None)
        self.talk = Conversation(frontend.codec(), frontend.processor(meter), lambda hashes: None, where, meter)
        self.begun = self.talk.add(self.piece("what is two"))

    def piece(self, prompt, *, resumable=True, params=None):
        options = {"resumable": resumable}
        (work,) = self.frontend.prepare([KEY], prompt, params or GREEDY, stream=True, text=True, options=options)
        return work

    def give(self, prompt="plus three"):
        return self.talk.extend(self.piece(prompt))

    def last(self):
        return self.talk.extend(self.piece([0], resumable=False))

    def says(self, tokens, reason=None):
        """One step: these tokens; ``reason`` is vLLM's number for how this piece, or the request, ended."""
        from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
        from vllm.v1.serial_utils import MsgpackEncoder

        output = EngineCoreOutput(KEY, tokens, finish_reason=None if reason is None else FinishReason(reason))
        self.talk.apply([MsgpackEncoder().encode(EngineCoreOutputs(outputs=[output]))])

    def confirms(self):
        """The barrier of what was aborted is answered; the keys that were."""
        from vllm.v1.engine import EngineCoreOutputs, UtilityOutput, UtilityResult
        from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

        abort, probe = self.talk.take_aborts()
        call_id = MsgpackDecoder().decode(probe[1:])[1]
        answer = UtilityOutput(call_id, None, UtilityResult(False))
        self.talk.apply([MsgpackEncoder().encode(EngineCoreOutputs(utility_output=answer))])
        assert abort[0] == ABORT
        return MsgpackDecoder().decode(abort[1:])

    def made(self):
        """(tokens, the last, released) of what was produced; the name of any other event."""
        return [
            (list(event.payload.token_ids), event.finished, event.released)
            if isinstance(event, Produced)
            else type(event).__name__
            for event in self.talk.take()
        ]


def test_a_piece_is_an_add_under_the_same_key_and_its_end_is_not_the_leases(frontend):
    session = Session(frontend)
    assert session.begun[0] == ADD
    session.says([5], None)
    session.says([6, 7], 1)
    assert session.made() == [([5], False, False), ([6, 7], False, False)]
    assert (list(session.talk.live), session.talk.owes) == ([KEY], False)
    assert session.give()[0] == ADD
    assert session.talk.owes
    session.says([8], 1)
    assert session.made() == [([8], False, False)]


def test_the_last_piece_ends_a_session_at_rest_without_a_word_to_the_engine_but_the_abort(frontend):
    session = Session(frontend)
    session.says([5], 1)
    assert session.last() is None
    assert session.made() == [([5], False, False), ([], True, False)]
    assert (session.confirms(), session.made()) == ([KEY], ["Released"])
    assert not session.talk.owes


def test_the_last_piece_while_it_answers_lets_it_answer(frontend):
    session = Session(frontend)
    session.give()
    assert session.last()[0] == ADD
    session.says([5], 1)
    session.says([6], 1)
    assert session.made() == [([5], False, False), ([6], True, False)]
    assert (session.confirms(), session.made()) == ([KEY], ["Released"])


def test_finish_reason_and_prompt_tokens_are_told_once_at_the_end(frontend):
    session = Session(frontend)
    session.says([5], 1)
    session.give()
    session.says([6], 0)
    session.last()
    chunks = [event.payload for event in session.talk.take()]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, "stop"]
    assert [chunk.native and chunk.native.outputs[0].finish_reason for chunk in chunks] == ["length", "stop", None]
    assert chunks[-1].prompt_tokens == 5


def test_an_engine_that_gives_it_up_is_told_to_forget_it_for_a_piece_may_be_on_its_way(frontend):
    session = Session(frontend)
    session.give()
    session.says([], 3)
    assert [type(event) for event in session.talk.take()] == [LeaseFailed]
    assert session.give() is None
    assert session.confirms() == [KEY]
    assert [type(event) for event in session.talk.take()] == [Released]  # late: its lease has ended


@pytest.mark.parametrize("at_rest", [True, False])
def test_after_an_abort_nothing_is_taken(frontend, at_rest):
    session = Session(frontend)
    if at_rest:
        session.says([5], 1)
    session.talk.take()
    assert session.talk.abort([KEY]) == [KEY]
    assert (session.give(), session.last()) == (None, None)
    assert (session.confirms(), session.made()) == ([KEY], ["Released"])
    assert (session.talk.live, session.talk.resting, session.talk.owes) == ({}, set(), False)


@pytest.mark.parametrize("params", [{"n": 2, "temperature": 1.0}, {"stop": ["x"]}, {"output_kind": 2}])
def test_what_vllm_streams_no_input_with_is_refused(frontend, params):
    params = {**GREEDY, **params}
    keys = ["k-1", "k-2"][: params.get("n", 1)]
    with pytest.raises(InvalidRequest, match="streamed input takes"):
        frontend.prepare(keys, "one", params, stream=True, text=True, options={"resumable": True})
