"""Drawing a graph: what stands on the screen for a chain, and what must be there for any DAG."""

import re

from hypothesis import given
from hypothesis import strategies as st

from omni_actors.cli._boxes import Arrow, Box, draw
from omni_actors.cli._graph import mermaid, picture
from omni_actors.config import InputSpec, PipelineSpec, StageSpec

CHAIN = PipelineSpec(
    name="chain",
    stages=(
        StageSpec(name="thinker", engine="vllm", output="text"),
        StageSpec(name="end", engine="vllm", replicas=2, inputs=(InputSpec(stage="thinker", mode="segments"),)),
    ),
)

DRAWN = """\
┌─────────┐
│ thinker │ ══▶ text
│ vllm    │
└─────────┘
     │
     │
     ▼ segments
┌─────────┐
│ end     │
│ vllm x2 │
└─────────┘"""


def test_a_chain_is_drawn_top_down_with_its_modes_and_outputs():
    assert picture(CHAIN) == DRAWN


def test_mermaid_keeps_clear_of_its_own_reserved_words():
    assert mermaid(CHAIN).splitlines() == [
        "flowchart LR",
        '    s_thinker["thinker<br/>vllm"]',
        '    s_thinker ==> out_s_thinker(["text"])',
        '    s_end["end<br/>vllm x2"]',
        "    s_thinker -->|segments| s_end",
    ]


def test_nothing_is_drawn_as_nothing():
    assert draw([], []) == ""


dags = st.integers(1, 7).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] < e[1]), max_size=12),
    )
)


@given(dags)
def test_every_box_and_every_edge_of_any_dag_is_there_once(dag):
    count, edges = dag
    boxes = [Box(str(i), (str(i),), "text" if i % 3 == 0 else None) for i in range(count)]
    drawn = draw(boxes, [Arrow(str(a), str(b), "segments") for a, b in sorted(edges)])
    for box in boxes:
        assert len(re.findall(rf"│ {box.name} +│", drawn)) == 1
    assert drawn.count("▼ segments") == len(edges)
    assert drawn.count("══▶ text") == sum(box.output is not None for box in boxes)


@given(dags)
def test_no_line_ends_in_the_air(dag):
    """Every character of a line meets one that points back at it, a box, or an arrow head."""
    count, edges = dag
    boxes = [Box(f"n{i}", (f"n{i}",)) for i in range(count)]
    rows = draw(boxes, [Arrow(f"n{a}", f"n{b}", "") for a, b in sorted(edges)]).split("\n")
    cell = {(r, c): character for r, row in enumerate(rows) for c, character in enumerate(row)}
    down, up = set("│┌┐├┤┬┼"), set("│└┘├┤┴┼")
    for (row, column), character in cell.items():
        if character in down:
            assert cell.get((row + 1, column), " ") in up | set("▼─"), (row, column)
        if character == "▼":
            assert cell[row - 1, column] in down
            assert cell[row + 1, column] == "─"
