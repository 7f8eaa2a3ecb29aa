"""Lawful runs in which a checker once saw a violation: each scenario was shrunk by the proof that it stopped."""

from __future__ import annotations

import pytest

from omni_actors.testing import replay
from omni_actors.testing.sim._scenario import scenario_from_json

LAWFUL = {
    "a splitter that cuts nothing off leaves its stage without work (I9)": (
        '{"ops":[{"type":"submit","at":0.1,"request":"r2","params":{"a":{"stop":["a","e"]}}}],"stages":[{"name":"a",'
        '"output":"text"},{"name":"b","inputs":["a"],"segments":true},{"name":"e","inputs":["a","b"],"output":"text"}]}'
    ),
    "an abort waits where a queue of one message is full (I10)": (
        '{"ops":[{"type":"submit","at":0.05,"request":"r0","id":"x","timeout_s":1.0},{"type":"submit","at":0.1,'
        '"request":"r1","timeout_s":0.1},{"type":"stall","at":0.07,"stage":"d"}],"stages":[{"name":"d","wire":"omni",'
        '"output":"image"}],"buggify":false,"hwm":1,"queue_limit":1}'
    ),
    "a call that was asked before it last spoke is still owed (I17)": (
        '{"ops":[{"type":"call","at":2.0,"stage":"b","method":"hang","timeout_s":5.0},{"type":"stall","at":4.0,"stage":'
        '"b","replica":1},{"type":"inject","at":10.0,"stage":"e"}],"stages":[{"name":"b","wire":"omni","output":"audio",'
        '"replicas":2},{"name":"d","wire":"omni","output":"audio"},{"name":"e","wire":"omni","inputs":["d"],"output":'
        '"image","replicas":2}],"seed":371686,"buggify":false}'
    ),
    "a step may be too long by less than its engine's heartbeat can tell (I17)": (
        '{"ops":[{"type":"submit","at":0.1,"request":"r0","pace_s":0.1,"leave_after":1}],"stages":[{"name":"a","output":'
        '"text","behaviour":{"tokens":1}},{"name":"d","wire":"omni","inputs":["a"],"output":"image","behaviour":'
        '{"steps":1,"stuck_at_chunk":0}}],"buggify":false}'
    ),
    "without a back-off a restart follows the end at once (I18)": (
        '{"ops":[{"type":"kill","at":0.1,"stage":"e"}],"stages":[{"name":"e","wire":"omni","output":"audio","deadlines":'
        '{"backoff_first_s":0.0}}],"buggify":false}'
    ),
    "an abort that was settled in the moment of a death leaves after it (I20)": (
        '{"ops":[{"type":"submit","at":0.1,"request":"r0"},{"type":"submit","at":0.5,"request":"r1"},{"type":"stall",'
        '"at":0.1,"stage":"b"}],"stages":[{"name":"b","wire":"omni","output":"audio"},{"name":"d","wire":"omni",'
        '"output":"audio","replicas":2,"behaviour":{"stall_at_chunk":0}}],"buggify":false}'
    ),
}


@pytest.mark.parametrize("json", LAWFUL.values(), ids=LAWFUL)
def test_it_is_no_violation(json):
    history, violations = replay(scenario_from_json(json))
    assert violations == []
    assert history.events
