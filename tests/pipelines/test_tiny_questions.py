"""The grammar of questions: right answers, seeds, and what training must never see."""

from __future__ import annotations

import random
import re

from omni_actors.pipelines.tiny_omni._questions import NUMBERS, Part, all_parts, draw, questions


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


def spelled(text: str) -> str:
    """With words for digits and signs, lower case."""
    for sign, word in {"+": " plus ", "-": " minus ", **{str(n): word for n, word in enumerate(NUMBERS[:10])}}.items():
        text = text.replace(sign, word)
    return " ".join(text.lower().split())


def test_questions_have_one_to_four_parts_and_an_answer_for_each() -> None:
    asked = questions(300, seed=0)
    assert {len(q.parts) for q in asked} == {1, 2, 3, 4}
    for q in asked:
        assert q.answer.count(".") == len(q.parts)
        assert all(part.words in spelled(q.text) for part in q.parts)


def test_parts_are_asked_in_the_order_of_the_answer() -> None:
    rng = random.Random(1)
    for _ in range(50):
        q = draw(rng, parts=4)
        places, start = [], 0
        for part in q.parts:
            start = spelled(q.text).index(part.words, start) + 1
            places.append(start)
        assert places == sorted(places)


def test_people_ask_in_many_ways() -> None:
    texts = [q.text for q in questions(2_000, seed=2, parts=3)]
    wanted = {
        "and throughout": r"^what is \w+ \w+ \w+, and \w+ \w+ \w+, and \w+ \w+ \w+\?$",
        "and at the end": r"^\D+ \w+ \w+ \w+, \w+ \w+ \w+,? and \w+ \w+ \w+[?.]$",
        "semicolons": r";.*;",
        "separately": r"\?.*\?.*\?",
        "please": r"please",
        "digits": r"\d \+ \d|\d\+\d",
    }
    assert [way for way, look in wanted.items() if not any(re.search(look, t, re.IGNORECASE) for t in texts)] == []
    assert any(text.isupper() for text in texts)
    assert any(text.islower() for text in texts)
    assert len(set(texts)) > 1_990
