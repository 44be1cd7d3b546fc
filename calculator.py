"""An exact calculator for models: `<calc>expr</calc>` is followed by `<result>value</result>` in the same turn (seed 004, section 3.8).

    python calculator.py "(25 - 3) * 4 / 8"        # 11
    python calculator.py "9**9**9"                 # error: ...

Nothing is evaluated by Python. The text must consist of digits, `+ - * / ( ) .` and blanks (and the signs × ÷ −, which are read as
* / -); it is parsed to a syntax tree, and only numbers and the four operations are walked, in fractions, so that 1/3*3 is 1. Powers, `//`,
names, attributes, calls, long input and large numbers are refused before any work is done on them: the answer comes within a millisecond.

Why not a maintained evaluator: two were tried on the payloads of tests/test_calculator.py. simpleeval 1.0.8 refuses powers, attributes and
long strings well, but computes in floats (8/(3-8/3) is 23.99999999999999, so a right answer would be marked wrong) and raises
RecursionError on long sums. asteval 1.0.10 has the same floats and builds [1]*10**8 (8 s, 800 MB). Both would need this file's checks in
front and fractions behind.
"""

import ast
import re
import sys
from fractions import Fraction

from inline import last_call

MAX_CALLS = 48  # in one answer
MAX_LENGTH = 200  # characters of an expression; also bounds how deep it can be nested
MAX_DIGITS = 15  # of one number
LIMIT = 10**15  # of numerators and denominators along the way
ALLOWED = re.compile(r"[0-9+\-*/(). \t\n]*")
SIGNS = str.maketrans({"×": "*", "÷": "/", "−": "-", "–": "-", "·": "*"})
STOP = "</calc>"
FORBIDDEN = "<result>"


def evaluate(text):
    """The exact value (a Fraction) of an arithmetic expression; ValueError with a short reason for anything else."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"longer than {MAX_LENGTH} characters")
    text = text.translate(SIGNS).strip()
    if not ALLOWED.fullmatch(text):
        raise ValueError("only numbers, + - * / and brackets")
    if re.search(rf"[0-9]{{{MAX_DIGITS + 1}}}", text.replace(".", "")):
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    try:
        tree = ast.parse(" ".join(text.split()), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError("not an expression") from None
    return _walk(tree.body)


def numbers(text):
    """The whole numbers of an expression, in order, as `evaluate` would read them."""
    return [int(digits) for digits in re.findall(r"[0-9]+", text)]


def _walk(node):
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(repr(node.value))  # the digits as written: 0.1 is one tenth
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _walk(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        raise ValueError("only numbers, + - * / and brackets")
    left, right = _walk(node.left), _walk(node.right)
    if isinstance(node.op, ast.Div):
        if right == 0:
            raise ValueError("division by zero")
        value = left / right
    else:
        value = left + right if isinstance(node.op, ast.Add) else left - right if isinstance(node.op, ast.Sub) else left * right
    if abs(value.numerator) > LIMIT or value.denominator > LIMIT:
        raise ValueError("the value is too large")
    return value


def calculate(text):
    """The value as a model reads it: "84", "-3", "8/3", or "error: reason"."""
    try:
        return str(evaluate(text))
    except ValueError as error:
        return f"error: {error}"


def inline_result(text, calls):
    """What is put behind the call that ends `text`; `calls`: how many there were before. The 49th is answered by an error, so that the
    model can still give its answer."""
    _, body = last_call(text, ["calc"])
    return f"<result>{calculate(body) if calls < MAX_CALLS else f'error: only {MAX_CALLS} calls'}</result>"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit('usage: python calculator.py "EXPRESSION"')
    print(calculate(sys.argv[1]))
