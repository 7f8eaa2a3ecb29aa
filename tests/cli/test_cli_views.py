"""What is shown: a start-up's lines, an answer as it comes, an error as one block, a log line, the end in one line."""

import io
import logging
from array import array

import pytest
import trio
from rich.console import Console

from omni_actors._errors import ConfigError, EngineDead, Overloaded, RequestTimeout, StageFailed, StartupFailed
from omni_actors.cli._answers import Answer, stats_of, stats_rows
from omni_actors.cli._demo_view import AnswerView
from omni_actors.cli._exit import Code, Missing, block, code_of, describe
from omni_actors.cli._logging import Formatter
from omni_actors.cli._progress import Startup, StartupDisplay
from omni_actors.cli._tables import shutdown_line, stats_table
from omni_actors.config import PipelineSpec, StageSpec
from omni_actors.lifecycle import Kind, Terminal, Timing
from omni_actors.lifecycle.events import Output, TensorChunk, TextChunk
from omni_actors.runtime import ShutdownReport
from omni_actors.stages import StageEvent
from omni_actors.wire.omni import Tensor

PAIR = PipelineSpec(
    name="pair",
    stages=(
        StageSpec(name="thinker", engine="vllm", output="text", replicas=2),
        StageSpec(name="vocoder", engine="generation", output="audio"),
    ),
)


def event(stage, kind, at, replica=0):
    return StageEvent(stage=stage, replica=replica, generation=1, kind=kind, error=None, at=at)


def screen(*, terminal=False, colours=None):
    """A console and what it shows."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, color_system=colours, width=100, legacy_windows=False)
    return console, shown


# ---------------------------------------------------------------------- start-up


def test_a_stage_is_ready_when_its_last_replica_is():
    startup = Startup(PAIR)
    assert startup.heard(event("thinker", "starting", 1.0)).state == "starting"
    assert startup.heard(event("thinker", "starting", 1.0, replica=1)) is None
    assert startup.heard(event("thinker", "ready", 3.0)) is None
    ready = startup.heard(event("thinker", "ready", 5.0, replica=1))
    assert (ready.state, ready.seconds(now=9.0)) == ("ready", 4.0)
    assert not startup.over


def test_a_death_before_readiness_ends_the_start_and_one_after_it_is_no_news():
    startup = Startup(PAIR)
    startup.heard(event("vocoder", "starting", 1.0))
    startup.heard(event("vocoder", "ready", 2.0))
    assert startup.heard(event("vocoder", "exited", 3.0)) is None
    startup.heard(event("thinker", "starting", 1.0))
    assert startup.heard(event("thinker", "exited", 2.5)).state == "failed"
    assert startup.over


def test_without_a_terminal_each_change_is_one_line():
    console, shown = screen()
    display = StartupDisplay(PAIR, console)
    display.on_event(event("vocoder", "starting", 1.0))
    display.on_event(event("vocoder", "ready", 2.5))
    display.close()
    assert shown.getvalue().splitlines() == [
        "vocoder (generation): starting", "vocoder (generation): ready after 1.5 s"
    ]  # fmt: skip


async def test_on_a_terminal_there_is_one_line_per_stage(autojump_clock):
    console, shown = screen(terminal=True)
    display = StartupDisplay(PAIR, console)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(display.run)
        await trio.testing.wait_all_tasks_blocked()
        now = trio.current_time()
        for replica in (0, 1):
            display.on_event(event("thinker", "starting", now, replica))
            display.on_event(event("thinker", "ready", now + 1.5, replica))
        display.on_event(event("vocoder", "starting", now))
        display.on_event(event("vocoder", "ready", now))
    display.close()
    frames = shown.getvalue().splitlines()
    thinker = [line for line in frames if "thinker" in line][-1]
    assert "ready 2/2" in thinker
    assert "1.5 s" in thinker
    assert "ready" in [line for line in frames if "vocoder" in line][-1]
    assert "waiting" in frames[0]


# ---------------------------------------------------------------------- answers


def text(words, reason=None, index=0):
    return Output("r", "thinker", "text", TextChunk(text=words, finish_reason=reason), index)


def sound(count, part, reason=None, rate=1000):
    tensor = Tensor("float32", (count,), array("f", [0.5] * count).tobytes())
    payload = TensorChunk(tensors={"audio": tensor}, meta={"sample_rate": rate}, finish_reason=reason)
    return Output("r", "vocoder", "audio", payload, 0, part)


def image(part, width=32, colour=255):
    tensor = Tensor("uint8", (32, width, 3), bytes([colour]) * (32 * width * 3))
    payload = TensorChunk(tensors={"image": tensor}, meta={"seed": 7, "steps": 2}, finish_reason="stop")
    return Output("r", "painter", "image", payload, 0, part)


def test_an_answers_pictures_stand_in_the_order_of_its_sentences():
    answer = Answer()
    second, first = answer.take(image(1), 0.2), answer.take(image(0), 0.3)
    assert answer.painted() == [first, second]
    assert (first.part, first.at_s, first.image.shape, first.meta["seed"]) == (0, 0.3, (32, 32, 3), 7)
    assert answer.painted(index=1) == []


def test_an_answer_adds_up_what_comes():
    answer = Answer()
    assert answer.take(text("Two"), 0.1) is None
    assert answer.take(sound(500, part=0), 0.3) is None
    answer.take(text(" is two.", "stop"), 0.4)
    answer.take(text("Zwei", index=1), 0.4)
    completed = answer.take(sound(250, part=0, reason="stop"), 0.5)
    assert (completed.part, completed.seconds, len(completed.samples())) == (0, 0.75, 750)
    assert (answer.text, answer.texts[1], answer.finish_reason) == ("Two is two.", "Zwei", "stop")
    assert (answer.first_text_s, answer.last_text_s, answer.first_audio_s) == (0.1, 0.4, 0.3)


def show(console, *outputs):
    answer = Answer()
    with AnswerView("How much?", answer, console) as view:
        for at, output in outputs:
            view.show(answer.take(output, at))


CONVERSATION = (
    (0.1, text("One.")),
    (0.2, sound(1000, 0, "stop")),
    (0.3, text(" Two.", "stop")),
    (0.4, sound(500, 1, "stop")),
)


def test_without_a_terminal_text_and_sounds_are_lines_in_the_order_of_their_end():
    console, shown = screen()
    show(console, *CONVERSATION)
    lines = [line for line in shown.getvalue().splitlines() if line]
    assert lines[0] == "Q  How much?"
    assert lines[1].startswith("  0.20 s  ")
    assert lines[1].endswith("1.0 s of speech (sentence 1)")
    assert lines[2] == "A  One. Two.  (0.10 s … 0.30 s)"
    assert lines[3].endswith("0.5 s of speech (sentence 2)")


def test_pictures_are_lines_too_and_stand_side_by_side_at_the_end():
    console, shown = screen()
    show(console, *CONVERSATION, (0.5, image(0)), (0.6, image(1, width=48, colour=0)))
    *_, first, second, row = [line.rstrip("\n") for line in shown.getvalue().splitlines() if line]
    assert first == "  0.50 s  a picture, 32 by 32 (sentence 1)"
    assert second == "  0.60 s  a picture, 48 by 32 (sentence 2)"
    assert row.rstrip() == "██"  # white, then black


def test_on_a_terminal_pictures_are_colours_under_the_lines():
    console, shown = screen(terminal=True, colours="truecolor")
    show(console, *CONVERSATION, (0.5, image(0)))
    frames = shown.getvalue()
    assert "a picture, 32 by 32 (sentence 1)" in frames
    assert frames.rindex("▀") > frames.rindex("sentence 1")


def test_on_a_terminal_the_text_grows():
    console, shown = screen(terminal=True)
    show(console, *CONVERSATION)
    frames = shown.getvalue()
    assert frames.index("One.") < frames.index("sentence 1") < frames.index("One. Two.") < frames.index("sentence 2")


def test_square_brackets_in_a_question_are_no_markup():
    console, shown = screen()
    with AnswerView("[bold]a [/nonsense]", Answer(), console):
        pass
    assert "[bold]a [/nonsense]" in shown.getvalue()


TERMINAL = Terminal(
    kind=Kind.FINISHED, request_id="r", stage="vocoder", submitted_at=10.0, at=11.0,
    timings=(
        Timing(stage="thinker", ready_at=10.0, submitted_at=10.001, first_at=10.1, finished_at=10.5, tokens=7),
        Timing(stage="vocoder", ready_at=10.3, submitted_at=10.3, first_at=10.6, finished_at=11.0, audio_s=1.4),
    ),
)  # fmt: skip


def test_the_parts_of_the_printed_table_sum_to_the_whole():
    rows = stats_rows(stats_of(TERMINAL))
    for row in rows["stages"]:
        assert row["queue_ms"] + row["first_ms"] + row["rest_ms"] == pytest.approx(row["total_ms"])
    last = rows["stages"][-1]
    assert last["start_ms"] + last["total_ms"] == rows["whole_ms"] == 1000.0
    assert last["rtf"] == pytest.approx(0.5)
    console, shown = screen()
    console.print(stats_table(stats_of(TERMINAL)))
    assert "1000.0" in shown.getvalue()
    assert "0.500" in shown.getvalue()


# ---------------------------------------------------------------------- ends


def test_a_shutdown_is_one_line_and_names_what_was_killed():
    report = ShutdownReport(stopped=("a/0", "b/0"), killed=("c/0",), seconds={"draining": 0.5, "stopping": 1.0})
    assert shutdown_line(report) == "shutdown: 2 engines stopped; killed: c/0 in 1.5 s (draining 0.5, stopping 1.0)"


def test_an_error_is_one_block_what_where_what_to_do():
    dead = EngineDead("gone", pid=7, signal="SIGKILL", stderr_tail=("out of paper",))
    error = StageFailed("stage thinker was killed", dead=dead, stage="thinker", replica=1, request_id="r-1")
    assert block(error) == [
        "error: stage thinker was killed",
        "  where: stage thinker/1, pid 7, request r-1",
        "  its last words:",
        "    out of paper",
        "  what to do: the stage is restarted by itself; its whole log: run again with --log-level info",
    ]
    assert describe(error) == {
        "kind": "StageFailed", "message": "stage thinker was killed", "request_id": "r-1", "stage": "thinker",
        "replica": 1, "verdict": "exit", "pid": 7, "signal": "SIGKILL", "stderr_tail": ["out of paper"],
    }  # fmt: skip


def test_last_words_that_the_message_has_are_not_said_twice():
    error = StartupFailed("it exited; its last words:\n    boom", stage="a", stderr_tail=("boom",))
    assert sum("boom" in line for line in block(error)) == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), Code.USAGE), (Missing("x"), Code.MISSING), (Overloaded("x"), Code.FAILED),
        (RequestTimeout("x"), Code.FAILED), (StartupFailed("x"), Code.FAILED), (KeyboardInterrupt(), Code.INTERRUPTED),
    ],
)  # fmt: skip
def test_whose_fault_it_is_is_the_exit_code(error, code):
    assert code_of(error) is code


def test_a_log_line_says_which_stage_and_request_it_is_about():
    record = logging.LogRecord("omni_actors.engine", logging.INFO, "f", 1, "loaded %d", (3,), None)
    assert Formatter().format(record) == "INFO omni_actors.engine loaded 3"
    record.stage, record.replica, record.request_id = "thinker", 0, "r-1"
    assert Formatter().format(record) == "INFO omni_actors.engine [thinker/0 r-1] loaded 3"
