"""Rewards of the fund assistant (seed 003): pure functions from one reply to named parts; a total is the sum of its parts.

    rules            thought 0.2, action 0.3, valid_tool 0.2, params 0.1: at most 0.8           (sections 1.1 and 3.6.1)
    rules-full       the same and plan 0.2: at most 1.0
    rules-tool, rules-full-tool      as these, but `action` needs the row's own tool
    ground-truth     tool 0.5 right / 0.1 legal but wrong / 0, params 0.2, reasoning and plan 0.3  (section 7.3)
    misuse           -0.3 in any mode: check_market_status without a market word in the request  (section 3.6.2)

The seed tells the first reward in two ways: its table (section 1.1) asks for a legal tool only, its summary (section 5) for the right
one. Under the table every legal tool earns full marks, so RL can't learn which to take; both readings are here, under two names.

Departures from the seed's ground-truth reward: parameters count only with the right tool and must equal the row's (there, any that fit the
schema count, so a wrong call could add 0.2); the bonus for logic words lies inside the 0.3, so that the maximum is 1.0; thoughts that copy
the request or consist of keywords earn nothing. What the rules pay to such answers is in tests/test_fund.py: they can't tell them apart.

A reply that isn't one whole JSON object earns 0 in every mode, however much of it could be read.
"""

import math
import re

MODES = ("rules", "rules-full", "rules-tool", "rules-full-tool", "ground-truth")
MISUSE_PENALTY = 0.3
RULES = {"thought": 0.2, "action": 0.3, "valid_tool": 0.2, "params": 0.1}
PLAN = 0.2  # what rules-full adds
TRUTH = {"tool": 0.5, "params": 0.2, "thought": 0.10, "logic": 0.05, "plan": 0.15}
LEGAL = 0.1  # a legal tool, but the wrong one: above nothing, so that silence isn't the better choice
MARKET_WORDS = ("market", "exchange", "trading hours", "trading session", "开市", "闭市", "开盘", "收盘", "休市", "交易时间", "市场", "交易所")
LOGIC_WORDS = ("first", "then", "before", "because", "therefore", "need to", "in order to", "since")  # section 7.4
LOGIC_WORDS_ZH = ("先", "然后", "之前", "因为", "因此", "所以", "需要", "为了")
COPIED, STUFFED, VARIED = 0.85, 0.3, 0.4  # shares of a thought's words: from the request, logic words, different ones


def full_reward(mode, form="react", penalty=0.0):
    """The highest reward that a mode can give. Without thought and plan (`tool-only`) their parts are out of reach."""
    check_mode(mode)
    parts = TRUTH if mode == "ground-truth" else {**RULES, **({"plan": PLAN} if "full" in mode else {})}
    return sum(value for name, value in parts.items() if form == "react" or name not in ("thought", "logic", "plan"))


def check_mode(mode):
    if mode not in MODES:
        raise SystemExit(f"reward_mode {mode!r}: choose one of {', '.join(MODES)}")


def score(mode, reply, expected, request, multi, penalty=0.0):
    """Named parts of one reply. `expected`: {tool, params}; `multi`: whether the request has several steps, so that a plan is due."""
    check_mode(mode)
    if mode == "ground-truth":
        parts = ground_truth(reply, expected, request, multi)
    else:
        parts = rules(reply, "full" in mode, expected["tool"] if mode.endswith("-tool") else None)
    return parts | ({"misuse": misuse(reply, request, penalty)} if penalty else {})


def rules(reply, full=False, tool=None):
    """Is it there, and is it legal? Nothing is compared with the answer, unless `tool` names the only one that `action` accepts."""
    good = {
        "thought": bool(reply.thought and reply.thought.strip()),
        "action": reply.known and tool in (None, reply.tool),
        "valid_tool": reply.known,
        "params": reply.params_ok,
    }
    parts = {name: RULES[name] * flag for name, flag in good.items()}
    return parts | ({"plan": PLAN * (reply.plan is not None)} if full else {})


def ground_truth(reply, expected, request, multi):
    """Compared with the row: the tool counts most. In a request of several steps an empty plan forfeits the reasoning as well."""
    right = reply.known and reply.tool == expected["tool"]
    planned = sound_plan(reply.plan, request) if reply.plan or multi else reply.plan is not None
    thinks = sound_thought(reply.thought, request) and (planned or not multi)
    return {
        "tool": TRUTH["tool"] if right else LEGAL * reply.known,
        "params": TRUTH["params"] * (right and same_params(reply.params, expected["params"])),
        "thought": TRUTH["thought"] * thinks,
        "logic": TRUTH["logic"] * (thinks and count_logic(reply.thought) > 0),
        "plan": TRUTH["plan"] * planned,
    }


def misuse(reply, request, penalty=MISUSE_PENALTY):
    """Asking for the market's status when nobody spoke of the market."""
    return -penalty if reply.tool == "check_market_status" and not mentions_market(request) else 0.0


def mentions_market(request):
    return any(word in request.lower() for word in MARKET_WORDS)


# ---------------------------------------------------------------- what counts as a thought, a plan, equal parameters


def words(text):
    """Words and single Chinese characters, in lower case."""
    return re.findall(r"[a-z0-9_']+|[\u4e00-\u9fff]", text.lower())


def count_logic(text):
    """Occurrences of words that join steps; English ones only as whole words."""
    text = text.lower()
    return sum(len(re.findall(rf"\b{word}\b", text)) for word in LOGIC_WORDS) + sum(text.count(word) for word in LOGIC_WORDS_ZH)


def is_copy(text, request):
    """Nearly all of it was in the request."""
    own, given = words(text), set(words(request))
    return not own or sum(word in given for word in own) >= COPIED * len(own)


def sound_thought(thought, request):
    """A sentence of one's own: at least four words, not the request again, not a string of keywords or repetitions."""
    if not thought:
        return False
    own = words(thought)
    if len(own) < 4 or is_copy(thought, request):
        return False
    return count_logic(thought) <= STUFFED * len(own) and len(set(own)) >= VARIED * len(own)


def sound_plan(plan, request):
    """Between one and eight different steps, none of them blank or simply the request."""
    if not plan or len(plan) > 8:
        return False
    entries = [" ".join(words(entry)) for entry in plan]
    return all(entries) and len(set(entries)) == len(entries) and " ".join(words(request)) not in entries


def same_params(params, expected):
    """Same keys and values; numbers by value, text without regard to case and outer blanks."""
    if not isinstance(params, dict) or set(params) != set(expected):
        return False
    return all(_same(params[key], expected[key]) for key in expected)


def _same(value, wanted):
    numbers = [isinstance(x, int | float) and not isinstance(x, bool) for x in (value, wanted)]
    if all(numbers):
        return math.isclose(value, wanted)
    if isinstance(value, str) and isinstance(wanted, str):
        return value.strip().casefold() == wanted.strip().casefold()
    return type(value) is type(wanted) and value == wanted
