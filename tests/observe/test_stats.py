"""The table of times: parts sum to their stage's total, stages fit into the whole, whatever the marks were."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.observe import StageTiming, request_stats

THINKER = StageTiming(stage="thinker", ready_at=10.0, submitted_at=10.1, first_at=10.3, finished_at=11.0, tokens=40)
VOCODER = StageTiming(stage="vocoder", ready_at=10.5, submitted_at=10.5, first_at=10.75, finished_at=11.5, audio_s=4.0)


def test_the_time_of_a_request_is_split_by_stage():
    stats = request_stats([VOCODER, THINKER], began_at=9.9)
    thinker, vocoder = stats.rows
    assert (thinker.stage, vocoder.stage) == ("thinker", "vocoder")
    assert (thinker.start_us, thinker.queue_us, thinker.first_us, thinker.rest_us) == (
        100_000,
        100_000,
        200_000,
        700_000,
    )
    assert (thinker.total_us, thinker.tokens, thinker.rtf) == (1_000_000, 40, None)
    assert vocoder.rtf == pytest.approx(0.25)
    assert stats.whole_us == vocoder.end_us == 1_600_000


def test_without_a_begin_the_first_input_is_the_begin():
    assert request_stats([VOCODER, THINKER]).rows[0].start_us == 0


def test_a_stage_that_never_got_its_input_has_no_row():
    assert request_stats([StageTiming(stage="painter")]).rows == ()
    assert request_stats([]).whole_us == 0


def test_time_is_booked_where_the_stage_stopped():
    never_sent = StageTiming(stage="a", ready_at=1.0, finished_at=3.0)
    never_answered = StageTiming(stage="b", ready_at=1.0, submitted_at=2.0, finished_at=3.0)
    still_going = StageTiming(stage="c", ready_at=1.0, submitted_at=2.0, first_at=2.5)
    rows = request_stats([never_sent, never_answered, still_going]).rows
    assert [(row.queue_us, row.first_us, row.rest_us) for row in rows] == [
        (2_000_000, 0, 0),
        (1_000_000, 1_000_000, 0),
        (1_000_000, 500_000, 0),
    ]


def test_silence_has_no_real_time_factor():
    silent = StageTiming(stage="vocoder", ready_at=0.0, submitted_at=0.0, first_at=1.0, finished_at=1.0, audio_s=0.0)
    assert request_stats([silent]).rows[0].rtf is None


def test_a_table_in_milliseconds_adds_up_on_paper():
    marks = StageTiming(stage="a", ready_at=0.0, submitted_at=0.0014, first_at=0.0028, finished_at=0.0042)
    row = request_stats([marks], began_at=0.0, tick_us=1000).rows[0]
    assert (row.queue_us, row.first_us, row.rest_us, row.total_us) == (1000, 2000, 1000, 4000)


MARKS = st.none() | st.floats(0, 1e6)
TIMINGS = st.builds(
    StageTiming, stage=st.just("s"), ready_at=MARKS, submitted_at=MARKS, first_at=MARKS, finished_at=MARKS,
    tokens=st.none() | st.integers(0, 1000), audio_s=st.none() | st.floats(0, 100),
)  # fmt: skip


@given(timings=st.lists(TIMINGS, max_size=5), began_at=MARKS, tick_us=st.sampled_from((1, 100, 1000)))
def test_parts_are_never_negative_and_sum_to_the_whole(timings, began_at, tick_us):
    stats = request_stats(timings, began_at=began_at, tick_us=tick_us)
    assert len(stats.rows) == sum(timing.ready_at is not None for timing in timings)
    for row in stats.rows:
        parts = (row.start_us, row.queue_us, row.first_us, row.rest_us)
        assert min(parts) >= 0
        assert sum(parts[1:]) == row.total_us
        assert row.start_us + row.total_us <= stats.whole_us
        assert all(part % tick_us == 0 for part in parts)
    assert stats.whole_us == max((row.end_us for row in stats.rows), default=0)
