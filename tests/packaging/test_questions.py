"""The page of questions names functions that exist, each question once."""

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "questions.md"
ROWS = re.findall(r"^\| ([^|]+) \| `([\w.]+)` \| `([\w.]+)` \|$", PAGE.read_text("utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize(("function", "module"), [(function, module) for _, function, module in ROWS])
def test_the_function_that_answers_a_question_exists(function: str, module: str) -> None:
    assert callable(reduce(getattr, function.split("."), importlib.import_module(module)))


def test_each_question_and_each_function_stands_there_once() -> None:
    assert len(ROWS) == PAGE.read_text("utf-8").count("\n| ") - 1, "every row but the heading is read"
    assert len({question for question, _, _ in ROWS}) == len(ROWS)
    assert len({(function, module) for _, function, module in ROWS}) == len(ROWS)
