"""The one reading of what a model wrote: an answer, a tool call, or the precise reason why it is neither.

The grammar is strict: after the reasoning, the whole body is one answer block or one tool call, nothing around it.

    xml   <tool_call><function=NAME><parameter=KEY>VALUE</parameter> ... </function></tool_call>      (Qwen3.5 style)
    json  <tool_call>{"name": NAME, "arguments": {KEY: VALUE}}</tool_call>                            (Qwen2.5, Qwen3)

Three outcomes besides an answer: a good call ("tool"), a malformed call ("tool" with `error`: nothing is run, the model is told
what was wrong and may try again) and everything else ("invalid", which ends the episode). Rollout, reward and evaluation all read
through `parse_action`; `protocol` passes these names on.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

THINK_CLOSE = "</think>"
# Default answer: <answer>\boxed{YES} free text</answer>. A task with another form has its own `ANSWER`; group 1 is the answer.
ANSWER = re.compile(r"<answer>\s*\\boxed\{(YES|NO)\}(?:(?!</?answer>).)*</answer>", re.DOTALL)
TYPES = {"string": str, "boolean": bool, "array": list, "object": dict, "null": type(None)}


@dataclass
class ToolCall:
    name: str
    arguments: dict


@dataclass
class Action:
    """`kind`: "answer", "tool", "invalid" or "inline" (a tool that was called within the turn)."""

    kind: str
    call: ToolCall | None = None
    answer: str | None = None
    text: str = ""  # the body that was read
    error: str = ""  # for "invalid", and for a "tool" that is a malformed call


def split_reasoning(text: str, open_think: bool) -> tuple[str, str] | None:
    """(reasoning, body) at the first </think>; None if the reasoning is never closed.

    `open_think`: the prompt had already opened <think>, so that a turn without </think> is reasoning only.
    """
    head, close, body = text.partition(THINK_CLOSE)
    if close:
        return head.removeprefix("<think>").strip("\n"), body.strip()
    return None if open_think or text.lstrip().startswith("<think>") else ("", text.strip())


def parse_action(chat, text: str, tools: list | None, answer: re.Pattern = ANSWER) -> Action:
    """Action of one turn. `text`: the turn without its stop token. `tools`: JSON-schema tools. `answer`: must match the whole body.

    Of `chat` only `grammar` ("xml" or "json") and `open_think` are read.
    """
    parts = split_reasoning(text, chat.open_think)
    if parts is None:
        return Action("invalid", text=text, error="the reasoning is not closed by </think>")
    body = parts[1]
    if not body:
        return Action("invalid", error="nothing follows the reasoning")
    if "<tool_call>" not in body:
        found = answer.fullmatch(body)
        if found:
            return Action("answer", answer=found[1], text=body)
        inside = answer.search(body)
        return Action("invalid", text=body, error="text around the answer block" if inside else "neither an answer block nor a tool call")
    if body.count("<tool_call>") > 1:
        return Action("invalid", text=body, error="more than one tool call in a turn")
    if not body.startswith("<tool_call>") or body.partition("</tool_call>")[2]:
        return Action("invalid", text=body, error="text around the tool call")
    try:
        if not body.endswith("</tool_call>"):
            raise ValueError("the tool call is not closed by </tool_call>")
        inner = body[len("<tool_call>") : -len("</tool_call>")].strip()
        call = _read_xml(inner, tools) if chat.grammar == "xml" else _read_json(inner, tools)
        _check(call.arguments, _parameters(call.name, tools), call.name)
    except (ValueError, RecursionError) as error:  # RecursionError: ten thousand brackets
        return Action("tool", text=body, error=f"Malformed tool call: {error}.")
    return Action("tool", call=call, text=body)


def strict_json(text: str):
    """json.loads without NaN, Infinity, numbers that overflow and repeated keys. ValueError with a one-line reason."""

    def refuse(name):
        raise ValueError(f"{name} is not JSON")

    def number(digits):
        return float(digits) if math.isfinite(float(digits)) else refuse(digits)

    def unique(pairs):
        keys = [key for key, _ in pairs]
        return dict(pairs) if len(set(keys)) == len(keys) else refuse(f"a repeated key ({max(keys, key=keys.count)})")

    def integer(digits):  # one with 400 digits is JSON, but no tool could turn it into a float
        return int(digits) if len(digits) <= 300 else refuse(digits[:20] + "...")

    return json.loads(text, parse_constant=refuse, parse_float=number, parse_int=integer, object_pairs_hook=unique)


def decode_arguments(arguments) -> dict:
    """Arguments as a dict. Records hold a dict, a JSON string, or a JSON string in a JSON string. ValueError if none of these."""
    for _ in range(2):
        if isinstance(arguments, str):
            arguments = strict_json(arguments)
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments must be a JSON object, not {type(arguments).__name__}")
    return arguments


def _parameters(name: str, tools: list | None) -> dict:
    """JSON schema of a tool's parameters."""
    known = {tool.get("function", tool)["name"]: tool.get("function", tool).get("parameters") or {} for tool in tools or []}
    if name not in known:
        raise ValueError(f"unknown tool {name[:60]!r}, there are: {', '.join(known) or 'none'}")
    return known[name]


def _read_json(inner: str, tools) -> ToolCall:
    call = strict_json(inner)
    if not isinstance(call, dict) or set(call) != {"name", "arguments"} or not isinstance(call["name"], str):
        raise ValueError('expected {"name": ..., "arguments": {...}}')
    return ToolCall(call["name"], decode_arguments(call["arguments"]))


def _read_xml(inner: str, tools) -> ToolCall:
    found = re.fullmatch(r"<function=([^<>\s]+)>(.*)</function>", inner, re.DOTALL)
    if not found:
        raise ValueError("expected <function=NAME> ... </function>")
    properties = _parameters(found[1], tools).get("properties", {})
    arguments, end = {}, 0
    for part in re.finditer(r"\s*<parameter=([^<>\s]+)>(.*?)</parameter>\s*", found[2], re.DOTALL):
        if part.start() != end:
            break
        key, value, end = part[1], part[2].removeprefix("\n").removesuffix("\n"), part.end()
        if key in arguments:
            raise ValueError(f"parameter {key!r} is given twice")
        arguments[key] = _read_value(value, properties.get(key, {}), key)
    if found[2][end:].strip():
        raise ValueError("expected <parameter=KEY>VALUE</parameter>, found " + repr(found[2][end:].strip()[:60]))
    return ToolCall(found[1], arguments)


def _read_value(value: str, schema: dict, key: str):
    """XML values are written bare: strings as they are, everything else as JSON."""
    kinds = _kinds(schema)
    if kinds in ([], ["string"]):
        return value
    try:
        return strict_json(value)
    except ValueError as error:
        if "string" in kinds:
            return value
        raise ValueError(f"parameter {key!r} is not valid JSON ({error})") from error


def _kinds(schema: dict) -> list:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _check(value, schema: dict, where: str) -> None:
    """The part of JSON Schema that tools use: type, required, properties, items, minItems, maxItems, enum. ValueError at a fault."""
    kinds = _kinds(schema) or (["object"] if "properties" in schema else [])
    if kinds and not any(_is_kind(value, kind) for kind in kinds):
        raise ValueError(f"{where} must be of type {' or '.join(kinds)}, not {json.dumps(value)[:60]}")
    if "enum" in schema and value not in schema["enum"]:
        raise ValueError(f"{where} must be one of {json.dumps(schema['enum'])}")
    if isinstance(value, dict):
        known = schema.get("properties", {})
        missing = [key for key in schema.get("required", []) if key not in value]
        if missing:
            raise ValueError(f"{where} lacks the required parameter {missing[0]!r}")
        extra = [key for key in value if key not in known]
        if known and extra and not schema.get("additionalProperties"):
            raise ValueError(f"{where} has no parameter {extra[0][:60]!r}, there are: {', '.join(known)}")
        for key in value:
            _check(value[key], known.get(key, {}), f"{where}.{key}")
    if isinstance(value, list):
        low, high = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        if not low <= len(value) <= high:
            raise ValueError(f"{where} must have {low} to {high} items, not {len(value)}")
        for index, item in enumerate(value):
            _check(item, schema.get("items", {}), f"{where}[{index}]")


def _is_kind(value, kind: str) -> bool:
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)  # True is an int in Python
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, TYPES.get(kind, object))
