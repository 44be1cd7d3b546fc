"""The action grammar: what counts as an answer or a call, and the precise reason for everything else."""

import json
import re
from types import SimpleNamespace

import pytest
from helpers import ZOOM

from protocol import parse_action

XML, JSON = SimpleNamespace(grammar="xml", open_think=True), SimpleNamespace(grammar="json", open_think=True)


def xml(inner, name="zoom"):
    return f"hm\n</think>\n\n<tool_call>\n<function={name}>\n{inner}\n</function>\n</tool_call>"


def parameter(key, value):
    return f"<parameter={key}>\n{value}\n</parameter>"


RANGE = parameter("range", "[1, 2]")


@pytest.mark.parametrize(
    "body, answer",
    [
        ("<answer>\\boxed{YES} free\ntext</answer>", "YES"),
        ("<answer>\\boxed{NO}</answer>", "NO"),
        ("  <answer>\n \\boxed{NO}x</answer>\n", "NO"),
    ],
)
def test_well_formed_answers(body, answer):
    action = parse_action(XML, f"thought </think>{body}", [ZOOM])
    assert (action.kind, action.answer, action.error) == ("answer", answer, "")


@pytest.mark.parametrize(
    "text, reason",
    [
        ("no end of thinking <answer>\\boxed{YES}</answer>", "not closed"),
        ("hm</think>", "nothing follows"),
        ("hm</think>\nIt is <answer>\\boxed{YES}</answer>", "text around the answer"),
        ("hm</think>\n<answer>\\boxed{YES}</answer> indeed", "text around the answer"),
        ("hm</think>\n<answer>\\boxed{yes}</answer>", "neither"),
        ("hm</think>\n<answer>YES</answer>", "neither"),
        ("hm</think>\n<answer>\\boxed{YES}</answer><answer>\\boxed{NO}</answer>", "text around"),
        ("hm</think>\n\\boxed{YES}", "neither"),
        (xml(RANGE) + "\nthanks", "text around the tool call"),
        ("hm</think>\nSo: <tool_call></tool_call>", "text around the tool call"),
        (xml(RANGE) + xml(RANGE).partition("</think>")[2], "more than one tool call"),
    ],
)
def test_everything_else_is_invalid_with_its_reason(text, reason):
    action = parse_action(XML, text, [ZOOM])
    assert action.kind == "invalid" and reason in action.error and action.call is None


def test_thinking_may_be_the_models_own_choice():
    free = SimpleNamespace(grammar="json", open_think=False)
    answer = "<answer>\\boxed{YES}</answer>"
    assert parse_action(free, answer, []).answer == "YES"
    assert parse_action(free, f"<think>a</think>{answer}", []).answer == "YES"
    assert parse_action(free, f"<think>a {answer}", []).kind == "invalid"
    assert parse_action(free, f"<think>{answer}</think>\n", []).kind == "invalid"  # an answer inside the thoughts is none


def test_xml_call_keeps_text_and_types():
    text = xml(
        parameter("range", "[-1.5e3, 2]")
        + "\n"
        + parameter("label", " Hα \n two lines\n")
        + parameter("points", "7")
        + parameter("grid", "false")
    )
    action = parse_action(XML, text, [ZOOM])
    assert action.error == "" and action.call.arguments == {
        "range": [-1500.0, 2],
        "label": " Hα \n two lines\n",
        "points": 7,
        "grid": False,
    }


@pytest.mark.parametrize(
    "inner, reason",
    [
        ("", "required parameter 'range'"),
        (parameter("label", "x"), "required parameter 'range'"),
        (parameter("range", "[1, 2,]"), "range"),
        (parameter("range", "[1, NaN]"), "NaN"),
        (parameter("range", "[1, -Infinity]"), "Infinity"),
        (parameter("range", "[1, 1e999]"), "1e999"),
        (parameter("range", f"[1, 1{'0' * 400}]"), "is not JSON"),
        (parameter("range", f"[1, 1{'0' * 5000}]"), "is not JSON"),
        (parameter("range", "[1, true]"), "range[1] must be of type number"),
        (parameter("range", "[1, 2, 3]"), "2 to 2 items"),
        (parameter("range", '"1-2"'), "must be of type array"),
        (parameter("range", "1 to 2"), "not valid JSON"),
        (parameter("range", "[" * 5000), ""),
        (RANGE + parameter("points", "1.5"), "must be of type integer"),
        (RANGE + parameter("points", "true"), "must be of type integer"),
        (RANGE + parameter("grid", "True"), "grid"),
        (RANGE + parameter("colour", "red"), "no parameter 'colour'"),
        (RANGE + RANGE, "given twice"),
        (RANGE + "now", "expected <parameter"),
        ("now" + RANGE, "expected <parameter"),
        ("<parameter=range>[1, 2]", "expected <parameter"),
    ],
)
def test_P11_malformed_xml_call_is_not_run_and_says_why(inner, reason):
    action = parse_action(XML, xml(inner), [ZOOM])
    assert action.kind == "tool" and action.call is None and reason in action.error and action.error.startswith("Malformed tool call")


@pytest.mark.parametrize(
    "inner, reason",
    [
        ('{"name": "zoom", "arguments": {"range": [1, 2],}}', ""),
        ('{"name": "zoom", "arguments": {"range": [1, 2]}', ""),
        ('{"name": "zoom"}', "expected"),
        ('{"name": "zoom", "parameters": {"range": [1, 2]}}', "expected"),
        ('{"name": ["zoom"], "arguments": {}}', "expected"),
        ("[1]", "expected"),
        ('{"name": "zoom", "arguments": [1, 2]}', "must be a JSON object"),
        ('{"name": "zoom", "arguments": "[1]"}', "must be a JSON object"),
        ('{"name": "zoom", "arguments": {"range": [1, 2], "range": [3, 4]}}', "repeated key (range)"),
        ('{"name": "zoom", "arguments": {"range": [1, NaN]}}', "NaN"),
        ('{"name": "zoom", "arguments": {}}', "required parameter 'range'"),
        ('{"name": "rm", "arguments": {}}', "unknown tool 'rm', there are: zoom"),
    ],
)
def test_P11_malformed_json_call_is_not_run_and_says_why(inner, reason):
    action = parse_action(JSON, f"hm</think><tool_call>\n{inner}\n</tool_call>", [ZOOM])
    assert action.kind == "tool" and action.call is None and reason in action.error


def test_P11_truncated_unknown_and_toolless_calls():
    assert "not closed" in parse_action(XML, xml(RANGE)[:-12], [ZOOM]).error
    assert "unknown tool 'peek'" in parse_action(XML, xml(RANGE, "peek"), [ZOOM]).error
    assert "there are: none" in parse_action(XML, xml(RANGE), None).error
    assert parse_action(XML, "hm</think><tool_call>nonsense</tool_call>", [ZOOM]).error.startswith("Malformed")


def test_P12_arguments_as_string_or_doubly_encoded_are_the_same_call():
    arguments = {"range": [1, 2], "label": 'quo"te\nß'}
    for value in (arguments, json.dumps(arguments), json.dumps(json.dumps(arguments))):
        action = parse_action(JSON, "hm</think><tool_call>" + json.dumps({"name": "zoom", "arguments": value}) + "</tool_call>", [ZOOM])
        assert action.call and action.call.arguments == arguments


def test_P16_a_task_brings_its_own_answer_form():
    free = SimpleNamespace(grammar="json", open_think=False)
    assert parse_action(free, "The answer is 42", None, re.compile(r"(?:.*\s)?(-?\d+)", re.S)).answer == "42"
