"""The grammar of questions: right answers, seeds, and what training must never see."""

from __future__ import annotations

import random

from omni_actors.pipelines.tiny_omni._questions import Part, all_parts, draw, questions


def test_a_question_knows_its_answer() -> None:
    part = Part(9, "minus", 4)
    assert (part.words, part.value, part.sentence) == ("nine minus four", 5, "Nine minus four is five.")


def test_there_are_155_parts_and_every_result_has_a_word() -> None:
    assert len(set(all_parts())) == 155
    assert {part.value for part in all_parts()} == set(range(19))


def test_the_same_seed_asks_the_same_questions() -> None:
    assert questions(20, seed=3) == questions(20, seed=3)
    assert questions(5, seed=3) == questions(20, seed=3)[:5]
    assert questions(20, seed=3) != questions(20, seed=4)


def test_questions_have_one_to_four_parts_and_an_answer_for_each() -> None:
    asked = questions(200, seed=0)
    assert {len(q.parts) for q in asked} == {1, 2, 3, 4}
    for q in asked:
        assert q.answer.count(".") == len(q.parts)
        assert all(part.words in q.text.lower() for part in q.parts)


def test_parts_are_asked_in_the_order_of_the_answer() -> None:
    rng = random.Random(1)
    for _ in range(50):
        q = draw(rng, parts=4)
        places, start = [], 0
        for part in q.parts:
            start = q.text.lower().index(part.words, start) + 1
            places.append(start)
        assert places == sorted(places)
