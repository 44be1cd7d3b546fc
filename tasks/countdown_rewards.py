"""Countdown's verifier, its four judges and its readings of behaviour: pure functions of a text (seed 004, sections 3.5 to 3.10).

    facts = read("<think>\\n3+4 = 7 (too low)\\n</think>\\n\\n<answer>3*4</answer>", [3, 4], 12, form=True, tokens=20, max_tokens=100)
    judge("v1", facts)      # (1.0, {"format": .05, "parse": .05, "numbers": .15, "right": .75, ...})

    v1     a ladder: format .05, parse .05, share of the numbers .15, right .75. In the seed it taught a settled policy to give up
    v2     v1's ideas in small (.1 together) and .9 for right, minus penalties on the process. Gamed within 126 steps: the model
           wrote its steps in a way that the patterns could not read, and all four penalties went to zero with no answer more right
    v2.1   v2 with three holes closed. Every reading of the process got better, every result worse: to fine errors is to fine attempts
    v3     right: 1 - .05 * length / max; everything else 0. What the seed kept

v2 and v2.1 stand here as a cautionary tale, with their probes as tests. The seed names their penalties, not their small parts nor the three
holes: .02 + .03 + .05 and the three below are our reading. All judges subtract .2 for a fabricated observation and .05 for each question
to the expert.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

from calculator import evaluate, numbers
from expert import PRICE
from inline import FABRICATION

JUDGES = ("v1", "v2", "v2.1", "v3")
MAX_LINE = 400  # characters; a longer line is no step of a search
BLOCK = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)
CALL = re.compile(r"<calc>([^<>]*)</calc>\s*<result>([^<>]*)</result>")
LEFT = frozenset("0123456789+-*/×÷−(). ")  # what an expression before "=" is made of
VALUE = re.compile(r"\s*(-?[0-9]+(?:\.[0-9]+)?(?:/[0-9]+)?)(?:[ ,:]*\(?\s*(too high|too low|perfect)\b)?", re.IGNORECASE)
# what v2 reads: the teacher's notation and no other (this is how it was gamed)
STRICT_STEP = re.compile(r"^([0-9+\-*/() ]+) = (-?[0-9]+(?:/[0-9]+)?) \((too high|too low|perfect match)\)$")
CLAIM = re.compile(r"\bperfect\b", re.IGNORECASE)
WIDE_CLAIM = re.compile(
    r"\b(?:perfect|exact(?:ly)?(?: match)?|success|solved|found it|it works|this works|that works|correct|matches the target)\b",
    re.IGNORECASE,
)
DENIED = re.compile(r"\b(?:not|isn't|no|never)\W*(?:\w+\W+){0,2}$", re.IGNORECASE)


@dataclass
class Facts:
    """What the judges and the readings need to know of one trajectory."""

    form: bool  # the strict grammar was kept
    expression: str | None  # what stands in the answer block that counts
    value: object = None  # Fraction, None if it can't be read
    share: float = 0.0  # of the given numbers that are used, each once
    correct: bool = False
    tokens: int = 0
    max_tokens: int = 1
    fabricated: bool = False
    asks: int = 0
    process: dict = field(default_factory=dict)  # `readings`
    strict: dict = field(default_factory=dict)  # what v2's patterns see of the same


# ---------------------------------------------------------------- the verifier


def number_share(expression, given):
    """The share of the given numbers that the expression uses; what is used too often counts against it. 1: exactly these."""
    used, wanted = Counter(numbers(expression)), Counter(given)
    return sum((used & wanted).values()) / max(sum(used.values()), sum(wanted.values()), 1)


def verify(expression, given, target):
    """(value or None, share of numbers, right). Right: the exact value is the target and each given number is used exactly once."""
    try:
        if re.search(r"[0-9]\.|\.[0-9]", expression):  # 2.5 would be read as 2 and 5
            raise ValueError("whole numbers only")
        value = evaluate(expression)
    except ValueError:
        return None, 0.0, False
    share = number_share(expression, given)
    return value, share, share == 1 and value == target


def last_answer(text):
    """What stands in the last <answer> block after the thoughts; None if there is none."""
    blocks = BLOCK.findall(text.rsplit("</think>", 1)[-1])
    return blocks[-1].strip() if blocks else None


# ---------------------------------------------------------------- readings of behaviour


def steps(text):
    """[(expression, value as written, mark or None)] of the search, wherever it stands. Calculator calls are read as `e = v`."""
    text = CALL.sub(lambda call: f"{call[1].strip()} = {call[2].strip()}", BLOCK.sub("", text))
    found = []
    for line in text.split("\n"):
        for equals in re.finditer("=", line if len(line) <= MAX_LINE else ""):
            right, start = VALUE.match(line, equals.end()), equals.start()
            while start and line[start - 1] in LEFT:  # backwards, as far as it can be arithmetic
                start -= 1
            left = re.sub(r"^(?:[0-9]+[.)] |[-−] |[+*/×÷). ])*", "", line[start : equals.start()]).strip()  # without bullets and numbering
            if right and re.search(r"[0-9)]\s*[+\-*/×÷−]|^[-−]", left):
                found.append((left, right[1], right[2].casefold() if right[2] else None))
    return found


def strict_steps(text):
    """As `steps`, of lines in the teacher's notation only: what v2 sees."""
    matches = (STRICT_STEP.match(line.strip()) for line in text.split("\n") if len(line) <= MAX_LINE)
    return [(m[1], m[2], "perfect" if m[3].startswith("perfect") else m[3]) for m in matches if m]


def direction(value, target):
    return "too high" if value > target else "too low" if value < target else "perfect"


def check_step(expression, written, mark, target):
    """(the value is right, the mark is true of the expression, the mark fits the value as written).

    None where there is nothing to check.
    """
    try:
        claimed = evaluate(written)
        value = evaluate(expression)
    except ValueError:
        return None, None, None
    return value == claimed, mark and mark == direction(value, target), mark and mark == direction(claimed, target)


def readings(text, given, target, correct, found=None, claim=WIDE_CLAIM):
    """The seed's readings of one text. Shares are None where there is nothing to divide by.

    marks_right: of the marks, how many stand behind a right value and say the truth. The seed's first pattern read only the first mark of a
    paragraph and gave .70 for a true .42 to .53: here each counts.
    """
    found = steps(text) if found is None else found
    checked = [(*step, *check_step(*step, target)) for step in found]
    known = [step for step in checked if step[3] is not None]
    marked = [step for step in known if step[2]]
    lines = [" ".join(line.split()).casefold() for line in text.split("\n") if re.search(r"[0-9]", line)]
    allowed = Counter(given)
    claims = sum(not DENIED.search(text[max(0, m.start() - 30) : m.start()]) for m in claim.finditer(text))
    return {
        "steps": len(found),
        "values_right": sum(step[3] for step in known) / len(known) if known else None,
        "marks": len(marked),
        "marks_right": sum(bool(step[3] and step[4]) for step in marked) / len(marked) if marked else None,
        "marks_reversed": sum(not step[5] for step in marked) / len(marked) if marked else None,
        "multiplies": any(re.search(r"[*/×÷]", step[0]) for step in found),
        "repeated": len(lines) - len(set(lines)),
        "illegal": sum(bool(Counter(numbers(step[0])) - allowed) for step in found),  # steps with numbers that nobody gave
        "claims": claims,
        "false_claim": bool(claims) and not correct,
        "characters": len(text),
    }


def read(text, given, target, form, tokens=0, max_tokens=1, fabricated=False, asks=0):
    """Facts of one trajectory. `text`: all that was written, with the injected results. `form`: whether the strict grammar was kept."""
    expression = last_answer(text)
    value, share, correct = verify(expression, given, target) if expression else (None, 0.0, False)
    correct = correct and not fabricated
    facts = Facts(form, expression, value, share, correct, tokens, max_tokens, fabricated, asks)
    thoughts = BLOCK.sub("", text)
    facts.process = readings(thoughts, given, target, correct)
    facts.strict = readings(thoughts, given, target, correct, strict_steps(thoughts), CLAIM)
    return facts


# ---------------------------------------------------------------- the judges


def v1(facts):
    return {
        "format": 0.05 * facts.form,
        "parse": 0.05 * (facts.value is not None),
        "numbers": 0.15 * facts.share,
        "right": 0.75 * facts.correct,
    }


def v2(facts):
    return _results(facts) | _penalties(facts, facts.strict)


def v21(facts):
    """The holes: steps in any notation are read; a wrong answer with no step to judge is as bad as one with only wrong steps; a claim
    counts in other words than "perfect" too."""
    penalties = _penalties(facts, facts.process)
    if not facts.process["steps"] and not facts.correct:
        penalties["wrong_steps"] = -0.1
    return _results(facts) | penalties


def v3(facts):
    return {"right": facts.correct * (1.0 - 0.05 * min(1.0, facts.tokens / facts.max_tokens))}


def _results(facts):
    return {
        "format": 0.02 * facts.form,
        "parse": 0.03 * (facts.value is not None),
        "numbers": 0.05 * facts.share,
        "right": 0.9 * facts.correct,
    }


def _penalties(facts, process):
    wrong = 0.0 if process["values_right"] is None else 1 - process["values_right"]
    return {
        "false_claim": -0.2 * process["false_claim"],
        "wrong_steps": -0.1 * wrong,
        "repeats": -0.05 * (process["repeated"] > 0),
        "illegal": -0.05 * (process["illegal"] > 0),
    }


def judge(name, facts):
    """(total, parts). The parts add up to the total, except `correct`, which is the 0/1 reading that evaluation counts."""
    functions = {"v1": v1, "v2": v2, "v2.1": v21, "v3": v3}
    if name not in functions:
        raise SystemExit(f"judge {name!r}: there are {', '.join(JUDGES)}")
    parts = functions[name](facts) | {"fabricated": -FABRICATION * facts.fabricated, "ask": -PRICE * facts.asks}
    parts = {key: float(value) + 0.0 for key, value in parts.items()}  # + 0.0: no -0.0 in the records
    return round(sum(parts.values()), 12), parts | {"correct": float(facts.correct)}
