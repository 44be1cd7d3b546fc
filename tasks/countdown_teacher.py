"""Countdown's problems, its solver and the program teacher (seed 004, sections 3.5 to 3.8).

    python -m tasks.countdown_teacher 74 3 25 50 1        # a demonstration for "make 74 of 3, 25, 50 and 1"

The teacher searches in the order that a reader can follow: layer 0 writes every sum and difference once (mirrored signs included: the
seed's first teacher left -a+b+c out and could not reach 7 questions); a sentence says how far sums reach; layer 1 multiplies or divides
one pair, the pair whose value lies nearest to the target first; layer 2 does it twice, or brackets a sum. Each line says what came out
and whether it is too high or too low. The teacher knows the answer, so layers 1 and 2 show at most WIDTH candidates before it.
"""

import itertools
import random
import sys

POOL = (0, 90_000)  # training questions
DEV = (90_000, 90_200)
HELD_OUT = (95_000, 95_100)
PROBLEMS = 100_000
SMALLEST, LARGEST = 1, 99  # the numbers given
TARGETS = (10, 99)
WIDTH = 10  # candidates shown of each layer above 0


# ---------------------------------------------------------------- problems


def problem(count, seed, index):
    """Problem `index` (0 to PROBLEMS - 1) with `count` numbers: (numbers, target). Each is drawn by itself, so a few cost no more than a
    few.

    The target is the value of a random expression that uses each number once, with whole positive values along the way: there is a
    solution.
    """
    rng = random.Random(f"countdown-{count}-{seed}-{index}")
    while True:
        given = [rng.randint(SMALLEST, LARGEST) for _ in range(count)]
        target = _random_value(given, rng)
        if target is not None and TARGETS[0] <= target <= TARGETS[1]:
            return given, target


def key(given, target):
    """Two problems with the same key are one, whatever the order of the numbers."""
    return (*sorted(given), target)


def held_out_keys(count, seed):
    """Keys that no training question may have: the test questions and those used for development."""
    return {key(*problem(count, seed, index)) for index in (*range(*HELD_OUT), *range(*DEV))}


def pool_indices(count, seed, size, where):
    """[index] of `size` training questions, drawn by `where`: no two alike, none like a development or test question."""
    if count not in (3, 4):
        raise SystemExit(f"Countdown with {count} numbers: 3 or 4")
    if not 0 <= size <= POOL[1] - POOL[0]:
        raise SystemExit(f"Countdown: {size} questions were asked for, the pool has {POOL[1] - POOL[0]}")
    taken, out = held_out_keys(count, seed), []
    for index in random.Random(f"{seed}-{where}-{count}").sample(range(*POOL), POOL[1] - POOL[0]):
        if len(out) == size:
            break
        if (name := key(*problem(count, seed, index))) not in taken:
            taken.add(name)
            out.append(index)
    return out


def _random_value(given, rng):
    values = list(given)
    rng.shuffle(values)
    while len(values) > 1:
        a, b = values.pop(int(rng.random() * len(values))), values.pop(int(rng.random() * len(values)))
        sign = "+-*/"[int(rng.random() * 4)]
        value = a + b if sign == "+" else a - b if sign == "-" else a * b if sign == "*" else (a // b if a % b == 0 else 0)
        if value <= 0:
            return None
        values.append(value)
    return values[0]


# ---------------------------------------------------------------- solver


def sums(terms):
    """[(text, value)]: every way to add and subtract the terms, each once, at least one of them added. terms: [(text, value)].

    The added ones come first, so that no line begins with a minus.
    """
    out = []
    for signs in itertools.product((1, -1), repeat=len(terms)):
        if max(signs) > 0:
            added = [text for sign, (text, _) in zip(signs, terms) if sign > 0]
            taken = [_bracket(text) for sign, (text, _) in zip(signs, terms) if sign < 0]
            out.append((" + ".join(added) + "".join(f" - {text}" for text in taken), sum(s * v for s, (_, v) in zip(signs, terms))))
    return out


def _bracket(text, always=False):
    sums_inside = any(sign in text for sign in "+-")
    return f"({text})" if sums_inside or (always and " " in text) else text


def _products(first, second):
    """[(text, value)] of × and of the whole quotients of two terms."""
    (a, x), (b, y) = first, second
    out = [(f"{_bracket(a)} * {_bracket(b)}", x * y)]
    out += [(f"{_bracket(a)} / {_bracket(b, True)}", x // y)] if y and x % y == 0 and y != 1 else []
    out += [(f"{_bracket(b)} / {_bracket(a, True)}", y // x)] if x and y % x == 0 and x not in (1, y) else []
    return out


def _rest(terms, *taken):
    return [term for index, term in enumerate(terms) if index not in taken]


def layer0(given):
    """Sums and differences."""
    return sums([(str(number), number) for number in given])


def layer1(given, target):
    """One product or quotient of a pair, nearest to the target first, then sums and differences with the others."""
    terms, heads = [(str(number), number) for number in given], []
    for i, j in itertools.combinations(range(len(terms)), 2):
        heads += [(abs(product[1] - target), product, i, j) for product in _products(terms[i], terms[j])]
    return [line for _, head, i, j in sorted(heads) for line in sums([head, *_rest(terms, i, j)])]


def layer2(given, target):
    """Everything else that one more × or ÷, or a bracketed sum, can reach: all ways to join two terms, again and again."""
    return list(_join([(str(number), number) for number in given]))


def _join(terms):
    if len(terms) == 1:
        yield terms[0]
        return
    for i, j in itertools.combinations(range(len(terms)), 2):
        (a, x), (b, y) = terms[i], terms[j]
        high, low, top, bottom = (a, b, x, y) if x >= y else (b, a, y, x)
        joined = [(f"{a} + {b}", x + y), (f"{high} - {_bracket(low)}", top - bottom), *_products(terms[i], terms[j])]
        for term in joined:
            yield from _join([term, *_rest(terms, i, j)])


def search(given, target):
    """[(layer, lines)] up to the layer that holds a solution: its lines end with the solution.

    Empty if there is none over whole numbers.
    """
    found = []
    for layer, make in enumerate((lambda: layer0(given), lambda: layer1(given, target), lambda: layer2(given, target))):
        lines = list(dict.fromkeys(make()))
        if layer == 2:  # a value that was written before, in another way, teaches nothing
            known, lines = {value for _, earlier in found for _, value in earlier}, first_of_each_value(lines)
            lines = [line for line in lines if line[1] not in known]
        hit = next((index for index, (_, value) in enumerate(lines) if value == target), None)
        if hit is not None:
            return [*found, (layer, lines[: hit + 1])]
        found.append((layer, lines))
    return []


def first_of_each_value(lines):
    kept = {}
    for text, value in lines:
        kept.setdefault(value, (text, value))
    return list(kept.values())


def solve(given, target):
    """(expression, layer) of the first solution in the teacher's order; (None, None) if there is none."""
    found = search(given, target)
    return (found[-1][1][-1][0], found[-1][0]) if found else (None, None)


def near_miss(given, target):
    """A wrong expression that uses the right numbers: what a bad expert says. The sum or difference nearest to the target."""
    lines = [(abs(value - target), text) for text, value in layer0(given) if value != target]
    return min(lines)[1]


# ---------------------------------------------------------------- the teacher


def thin(lines, width=WIDTH):
    """At most `width` lines before the last one: the first ones, in order, so that "best first" stays true."""
    return lines if len(lines) <= width + 1 else [*lines[:width], lines[-1]]


def mark(value, target):
    return "perfect match" if value == target else "too high" if value > target else "too low"


def question(given, target):
    """What the teacher asks an expert."""
    return f"Which expression makes {target} of {', '.join(map(str, given))}?"


def demonstrate(given, target, tool=False, replies=()):
    """(text, injected): a whole assistant turn and the results that stand in it, in order. None if it can't be solved.

    `replies`: what an expert says to the questions, the last one right. They are asked only where layers 0 and 1 do not do it, and each
    reply is checked before it is believed.
    """
    found = search(given, target)
    if not found:
        return None
    lines, injected = [], []

    def write(expression, value):
        if tool:
            injected.append(f"<result>{value}</result>")
            lines.append(f"<calc>{expression}</calc>{injected[-1]} ({mark(value, target)})")
        else:
            lines.append(f"{expression} = {value} ({mark(value, target)})")

    for layer, candidates in found:
        if layer == 1:
            reach = [value for _, value in found[0][1]]
            lines.append(f"Sums and differences, from {min(reach)} to {max(reach)}, do not give {target}. Next: one product or quotient.")
        elif layer == 2 and replies:
            for reply in replies:
                injected.append(f"<reply>{reply}</reply>")
                lines.append(f"<ask>{question(given, target)}</ask>{injected[-1]}")
                write(reply, next(value for text, value in [*candidates, *found[0][1]] if text == reply))
            break
        elif layer == 2:
            lines.append("Next: two of them, or brackets.")
        last = (layer, candidates) == found[-1]
        shown = candidates if layer == 0 else thin(candidates) if last else candidates[:WIDTH]
        for expression, value in shown:
            write(expression, value)
    thoughts = "\n".join(lines)
    return f"<think>\n{thoughts}\n</think>\n\n<answer>{found[-1][1][-1][0]}</answer>", injected


if __name__ == "__main__":
    if len(sys.argv) not in (5, 6) or not all(word.isdigit() for word in sys.argv[1:]):
        sys.exit("usage: python -m tasks.countdown_teacher TARGET NUMBER NUMBER NUMBER [NUMBER]")
    shown = demonstrate([int(word) for word in sys.argv[2:]], int(sys.argv[1]))
    print(shown[0] if shown else "no solution over whole numbers")
