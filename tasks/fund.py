"""The fund assistant: choose the right one of six tools, in single steps and in requests of several steps (seed 003).

    python prepare_data.py all --task fund                                         # synthetic requests, seconds
    python prepare_data.py all --task fund --form tool-only --labels wrong         # the seed's first data, its wrong labels included
    python prepare_data.py bench --task fund --requests my.jsonl --tools my.json   # your own requests, and tools if they aren't these six
    python eval.py --task fund --policy gold --base-model MODEL --output outputs/fund-gold

What the model writes is one JSON object and nothing around it (a ```json fence is allowed). Two forms, by the row's `form`:

    react        {"thought": "...", "action": {"tool": "withdraw_funds", "params": {"amount": 500}}, "plan": ["withdraw_funds 500"]}
    tool-only    {"tool": "withdraw_funds", "params": {"amount": 500}}

`plan` begins with the step of this turn and names those that follow it. Rows are of three kinds, by `kind`:

    single    one decision (a request of several steps asks for its first)
    multi     one decision in the middle of a request: the prompt lists "Previous steps:" and what they gave (section 7.5)
    request   the whole request is run on the account of fund_world, turn by turn; it ends when a plan has no step after this one

Rows: id, task (simple, domain, intraday, combination, multi, request), kind, form, label (tool), request, lang, expected {tool, params,
thought, plan}, path (kind request: all steps with their results), state, end, several (whether a plan is due), ambiguous, accepted (tools),
wording, entities, own (not generated), reward_mode, misuse_penalty. The last two only steer the grader: they may be changed without making the data again.

Your own requests: JSONL lines like the following; tasks/fund_files.py says what else they may hold.
    {"request": "Pay 70 to Ann", "action": {"tool": "transfer_funds", "params": {"amount": 70, "to": "Ann"}}}
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from actions import _check as check_schema
from actions import strict_json
from protocol import Action, Observation
from tasks import fund_rewards

ANSWER = re.compile(r"((?:```(?:json)?\s*)?\{.*\}(?:\s*```)?)", re.S)  # outer shape only; `read_reply` says whether it is a reply
FIELDS = {"react": ("thought", "action", "plan"), "tool-only": ("tool", "params")}
MAX_STEPS = 6  # calls in one request; the longest generated one has three


def _tool(name, about, required=(), **properties):
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


_TEXT, _NUMBER, _SIDE = {"type": "string"}, {"type": "number"}, {"type": "string", "enum": ["buy", "sell"]}
SIX = [
    _tool("check_balance", "Cash and holdings of an account.", account=_TEXT),
    _tool("transfer_funds", "Pay someone, or move money to another account.", ("amount", "to"), amount=_NUMBER, to=_TEXT),
    _tool("withdraw_funds", "Pay money out to the customer's bank.", ("amount",), amount=_NUMBER, account=_TEXT),
    _tool("place_order", "Buy or sell shares.", ("side", "symbol", "quantity"), side=_SIDE, symbol=_TEXT, quantity=_NUMBER),
    _tool("get_transaction_history", "Past trades and payments, with the dates on which money arrives.", symbol=_TEXT),
    _tool("check_market_status", "Whether the market is open."),
]
SETTABLE = ("reward_mode", "misuse_penalty")  # by --set, where rows lack them, too
TOOLS = None  # none for the chat template: the prompt lists them itself, in SFT and in RL alike
ANSWERS = tuple(tool["function"]["name"] for tool in SIX)  # `always-yes` always takes the first, check_balance
ANSWER_PREFIX = '"tool": "'  # what stands before the name, for train_sft.py --answer-weight

SHAPES = {
    "react": '{"thought": why, "action": {"tool": name, "params": {...}}, "plan": [this step, the steps after it]}',
    "tool-only": '{"tool": name, "params": {...}}',
}


def system_prompt(form, tools=None):
    lines = []
    for tool in tools or SIX:
        tool = tool.get("function", tool)
        schema = tool.get("parameters") or {}
        names = [name + ("" if name in schema.get("required", ()) else "?") for name in schema.get("properties", {})]
        lines.append(f"{tool['name']}({', '.join(names)}): {tool.get('description', '')}".strip(": "))
    head = "You are a fund assistant. Choose the tool for the next step. Tools:\n" + "\n".join(lines)
    return f"{head}\nReply with JSON only: {SHAPES[form]}"


def request_text(request, steps):
    """The request, and what has been done for it so far: steps [(tool, result)]."""
    done = "".join(f"\nStep {number}: {tool} -> {result}" for number, (tool, result) in enumerate(steps, 1))
    return request + (f"\n\nPrevious steps:{done}" if done else "")


def messages(request, steps, form, tools=None):
    return [{"role": "system", "content": system_prompt(form, tools)}, {"role": "user", "content": request_text(request, steps)}]


# ---------------------------------------------------------------- the one reading of a reply


@dataclass
class Reply:
    """What could be read. `faults`: every reason, as "code: detail"; the fields stay usable if only another field was wrong."""

    tool: str | None = None
    params: dict | None = None
    thought: str | None = None
    plan: list | None = None
    known: bool = False  # the tool exists
    params_ok: bool = False  # the parameters fit its schema
    faults: list = field(default_factory=list)

    @property
    def error(self):
        return self.faults[0] if self.faults else ""


def read_reply(text, form="react", tools=None):
    """The reply in a turn's body. Codes of its faults: empty, no_json, around, bad_json, not_object, lacks, extra, thought, action, tool,
    unknown_tool, params, plan. The first five leave nothing that a reward could count."""
    body = text.strip()
    fenced = re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", body, re.S)
    body = fenced[1] if fenced else body
    if not body:
        return Reply(faults=["empty: nothing was written"])
    if "{" not in body:
        return Reply(faults=["no_json: there is no JSON object"])
    try:
        data = strict_json(body)
    except (ValueError, RecursionError) as error:
        around = not (body.startswith("{") and body.endswith("}"))
        return Reply(faults=["around: text around the JSON object, or it was cut off" if around else f"bad_json: {error}"])
    if not isinstance(data, dict):
        return Reply(faults=[f"not_object: the JSON is of type {type(data).__name__}"])
    names = FIELDS[form]
    needed = names if form == "react" else names[:1]  # params may be left out of a tool-only reply
    faults = [f"lacks: no {name}" for name in needed if name not in data]
    faults += [f"extra: unknown field {name[:40]!r}" for name in data if name not in names]
    reply = Reply(faults=faults)
    action = data
    if form == "react":
        _read_reasoning(reply, data)
        action = data.get("action", {})
        if not isinstance(action, dict):
            faults.append(f"action: not an object but {type(action).__name__}")
            action = {}
        faults += [f"extra: unknown field {name[:40]!r} in action" for name in action if name not in ("tool", "params")]
    if "tool" in action or "action" in data:
        _read_action(reply, action, tools or SIX)
    return reply


def _read_reasoning(reply, data):
    thought, plan = data.get("thought", ""), data.get("plan", [])
    if not isinstance(thought, str):
        reply.faults.append(f"thought: not a text but {type(thought).__name__}")
    elif "thought" in data:
        reply.thought = thought
        reply.faults += [] if thought.strip() else ["thought: it is empty"]
    if not isinstance(plan, list) or not all(isinstance(entry, str) for entry in plan):
        reply.faults.append("plan: not a list of texts")
    elif "plan" in data:
        reply.plan = plan


def _read_action(reply, action, tools):
    schemas = {tool.get("function", tool)["name"]: tool.get("function", tool).get("parameters") or {} for tool in tools}
    tool, params = action.get("tool"), action.get("params", {})
    if not isinstance(tool, str):
        reply.faults.append("tool: no name of a tool")
        return
    reply.tool, reply.known = tool, tool in schemas
    if not reply.known:
        reply.faults.append(f"unknown_tool: {tool[:40]!r}, there are: {', '.join(schemas)}")
    if not isinstance(params, dict):
        reply.faults.append(f"params: not an object but {type(params).__name__}")
        return
    reply.params = params
    if reply.known:
        schema = schemas[tool]
        unexpected = [name for name in params if name not in schema.get("properties", {})]
        try:
            if unexpected:
                raise ValueError(f"{tool} has no parameter {unexpected[0][:40]!r}")
            check_schema(params, schema, tool)
            reply.params_ok = True
        except ValueError as error:
            reply.faults.append(f"params: {error}")


def replies(row, trajectory):
    """One Reply a turn."""
    bodies = [turn.action.text if turn.action and turn.action.text else turn.text for turn in trajectory.turns]
    return [read_reply(body, row.get("form", "react"), row.get("tools")) for body in bodies]


def reply_text(step, form="react"):
    """The JSON of a step {tool, params, thought, plan}."""
    action = {"tool": step["tool"], "params": step["params"]}
    data = {"thought": step["thought"], "action": action, "plan": step["plan"]} if form == "react" else action
    return json.dumps(data, ensure_ascii=False)


# ---------------------------------------------------------------- the environment


@dataclass
class Episode:
    """One decision, or (with an account) a whole request. `step` sees answers, since a JSON object is one to the loop."""

    messages: list
    row: dict
    account: object = None
    tools: list | None = None  # the prompt lists them: the template's own way of calling would say something else
    steps: list = field(default_factory=list)  # [(tool, result)]
    step_answers: bool = True

    def step(self, action):
        if self.account is None or action.kind != "answer":
            return Observation(done=True)
        reply = read_reply(action.text, self.row["form"])
        tool, result, _ = take_step(self.account, reply)
        self.steps.append((tool, result))
        done = is_last(self.row, reply, len(self.steps))
        return Observation(request_text(self.row["request"], self.steps), done=done, role="user")


def take_step(account, reply):
    """(tool, what it said, whether it was done). What can't be read is not run; the model is told why."""
    from tasks.fund_world import run_tool

    if not reply.known or not reply.params_ok:
        return reply.tool or "nothing", f"Error: {reply.error or 'no tool was called'}", False
    return reply.tool, *run_tool(account, reply.tool, reply.params)


def is_last(row, reply, taken):
    """A request is over when the plan has nothing after this step. Without plans (tool-only) it takes as many steps as it needs."""
    if taken >= MAX_STEPS:
        return True
    if row["form"] == "tool-only":
        return taken >= len(row["path"])
    return reply.plan is not None and len(reply.plan) <= 1


def start(row, folder="."):
    """The episode of a row; a request gets an account of its own."""
    if row.get("kind") != "request":
        return Episode(row["messages"], row)
    from tasks.fund_world import open_account

    return Episode(row["messages"], row, open_account(row["state"]))


def replay(row, trajectory):
    """(calls that were done [(tool, params)], snapshot at the end) of a request, run again: the tools are deterministic."""
    from tasks.fund_world import open_account, snapshot

    account, done = open_account(row["state"]), []
    for number, reply in enumerate(replies(row, trajectory), 1):
        if take_step(account, reply)[2]:
            done.append((reply.tool, reply.params))
        if is_last(row, reply, number):
            break
    return done, snapshot(account)


# ---------------------------------------------------------------- reward


def predict(trajectory):
    """The tools that were called, one a turn, as in "check_balance > transfer_funds"; None if no turn named one."""
    forms = [[read_reply(turn.action.text if turn.action else turn.text, form).tool for form in FIELDS] for turn in trajectory.turns]
    return " > ".join(react or plain or "?" for react, plain in forms) if any(any(pair) for pair in forms) else None


def reward(row, trajectory):
    """The row's `reward_mode` and `misuse_penalty` (tasks/fund_rewards.py); a request earns the mean over its steps.

    Parts also hold two measures that are not summed: `correct` (right tool; for requests: `succeeded`) and `params_right`."""
    if trajectory.finish_reason in ("error", "timeout") or not row.get("expected"):
        return None, {}
    mode, penalty = row.get("reward_mode", "ground-truth"), float(row.get("misuse_penalty", 0.0))
    found, wanted = replies(row, trajectory), row.get("path") or [row["expected"]]
    parts = Counter()
    for number in range(max(len(found), len(wanted))):  # a step too many earns nothing, and lowers the mean like one that is missing
        if number < min(len(found), len(wanted)):
            earned = fund_rewards.score(mode, found[number], wanted[number], row["request"], row.get("several", False), penalty)
            for name, value in earned.items():
                parts[name] += value
    parts = {name: value / max(len(found), len(wanted)) for name, value in parts.items()}
    total = round(sum(parts.values()), 9)
    right = succeeded(row, trajectory) if row.get("kind") == "request" else bool(found) and found[0].tool == wanted[0]["tool"]
    same = bool(found) and len(found) == len(wanted) and all(
        reply.tool == step["tool"] and fund_rewards.same_params(reply.params, step["params"]) for reply, step in zip(found, wanted)
    )  # fmt: skip
    return total, parts | {"correct": float(right), "params_right": float(same)}


def succeeded(row, trajectory):
    """Whether a request was carried out: every step of the right path done in order, and the account ends as it should.
    Additional looks, or a refused call in between, do no harm; an additional payment does."""
    done, end = replay(row, trajectory)
    left = iter(done)
    in_order = all(any(tool == s["tool"] and fund_rewards.same_params(params, s["params"]) for tool, params in left) for s in row["path"])
    return in_order and end == row["end"]


def metrics(rows, trajectories):
    """Tool accuracy by category, confusion of tools, faults, steps and success of requests, and the lines that eval.py prints."""
    from tasks.fund_metrics import report

    return report(rows, trajectories)


# ---------------------------------------------------------------- where the fields of a reply stand


def token_spans(row, text):
    """{"reasoning": [(start, end)], "tool": [...]} of a reply, in characters, keys included: thought and plan, and the call. {} if it can't
    be read as a whole, so that every token of such a reply weighs alike (train_rl.py --dart)."""
    reply, decoder, spans = read_reply(text, row.get("form", "react"), row.get("tools")), json.JSONDecoder(), {"reasoning": [], "tool": []}
    if reply.error.partition(":")[0] in ("empty", "no_json", "around", "bad_json", "not_object"):
        return {}
    at = text.index("{") + 1
    while (key := re.compile(r"\s*,?\s*(?=\")").match(text, at)):  # one `"key": value` after another; at the closing brace it ends
        name, end = decoder.raw_decode(text, key.end())
        _, at = decoder.raw_decode(text, re.compile(r"\s*:\s*").match(text, end).end())
        if name in ("thought", "plan", "action", "tool", "params"):
            spans["reasoning" if name in ("thought", "plan") else "tool"].append((key.end(), at))
    return spans


# ---------------------------------------------------------------- scripted policies


def gold(row, folder=None):
    """The policy that must earn `full_reward` on every row: what the generator knows. Yields (thought, action)."""
    for step in row.get("path") or [row["expected"]]:
        step = step | {"thought": step["thought"] or "Done."}  # your own requests may have none
        yield "", Action("answer", answer=step["tool"], text=reply_text(step, row.get("form", "react")))


def full_reward(row):
    """What gold must earn. Of your own requests that is tool and parameters: their thoughts and plans are yours, or not there at all."""
    return fund_rewards.full_reward(row.get("reward_mode", "ground-truth"), "tool-only" if row.get("own") else row.get("form", "react"))


def random_steps(row, folder, rng):
    """The floor: any tool, without parameters, as often as the request has steps."""
    for _ in row.get("path") or [0]:
        choice = ANSWERS[rng.integers(len(ANSWERS))]
        step = {"tool": choice, "params": {}, "thought": "Done.", "plan": [choice]}
        yield "", Action("answer", answer=choice, text=reply_text(step, row.get("form", "react")))


random_play = random_steps  # the name that policies.py asks for


def closing(task, choice):
    """The step that takes a tool without parameters, whatever was asked. Both forms can't be right at once: this is react."""
    step = {"tool": choice, "params": {}, "thought": "Done.", "plan": [choice]}
    return "", Action("answer", answer=choice, text=reply_text(step))


# ---------------------------------------------------------------- data


def flags(group):
    """The flags of prepare_data.py that only this task has; --labels and --train-size take the place of those of the spectra."""
    from runs import number

    whole = lambda low: number(int, low)
    group.add_argument("--form", choices=("react", "tool-only"), default="react", help="of a reply: JSON with thought, action and plan, or the bare tool (default: react)")
    group.add_argument("--labels", choices=("right", "wrong"), default="right", help="wrong: the first step of a combination is labelled check_balance in training (default: right)")
    group.add_argument("--languages", choices=("both", "en", "zh"), default="both", help="of the requests (default: both)")
    group.add_argument("--oversample", type=whole(1), default=1, metavar="N", help="domain, intraday and combination rows of training N times (default: 1)")
    group.add_argument("--reward-mode", choices=fund_rewards.MODES, default="ground-truth", help="written into the rows; train_rl.py --set reward_mode=... changes it later (default: ground-truth)")
    group.add_argument("--misuse-penalty", type=number(float, 0), default=0.0, metavar="P", help="off the reward of check_market_status without a market word; the seed's is 0.3 (default: 0)")
    group.add_argument("--train-size", type=whole(1), help="rows for RL, single and multi in the seed's proportion (default: 454 + 823)")
    group.add_argument("--single-size", type=whole(0), help="single-step rows for RL (default: 454)")
    group.add_argument("--multi-size", type=whole(0), help="expanded rows of several-step requests for RL; 0 leaves them out of SFT and dev, too (default: 823)")
    group.add_argument("--request-size", type=whole(0), help="whole requests for RL, run on the account (default: 0)")
    group.add_argument("--domain-size", type=whole(0), help="further rows of the domain category for RL, about settlement (default: 0; the seed tried 100)")
    group.add_argument("--requests", type=Path, metavar="FILE", help="JSONL of your own requests in place of the generator (tasks/fund_files.py)")
    group.add_argument("--tools", type=Path, metavar="FILE", help="with --requests: JSON list of your own tools' schemas")


TYPES = {  # of what the metrics count by, in a row that somebody wrote by hand
    "task": (str, "the category, a text"), "kind": (str, "single, multi or request"), "lang": (str | None, "a text"),
    "several": (bool | None, "true or false"), "ambiguous": (bool | None, "true or false"), "accepted": (list | None, "a list of names of tools"),
}  # fmt: skip


def check_row(row):
    """What is wrong with a row, "" if nothing: asked by train_rl.py and eval.py before anything is played."""
    steps = row.get("path") or [row.get("expected")]
    good = all(isinstance(step, dict) and isinstance(step.get("tool"), str) and isinstance(step.get("params"), dict) for step in steps)
    if not good or not isinstance(row.get("request"), str) or row.get("form") not in FIELDS:
        return "no row of the fund assistant (request, form and expected {tool, params} are missing); write it with prepare_data.py --task fund"
    for key, (kind, what) in TYPES.items():
        if not isinstance(row.get(key), kind) or (kind == list | None and not all(isinstance(entry, str) for entry in row.get(key) or ())):
            return f"{key} {row.get(key)!r}: {what}"
    if row.get("ambiguous") and not row.get("accepted"):
        return "an ambiguous row needs accepted, a list of the tools that are right"
    if row.get("kind") == "request" and not (row.get("path") and row.get("state") and row.get("end")):
        return "a row of kind request needs path, state and end"
    if row.get("reward_mode", "ground-truth") not in fund_rewards.MODES:
        return f"reward_mode {row['reward_mode']!r}: choose one of {', '.join(fund_rewards.MODES)}"
    penalty = row.get("misuse_penalty", 0)
    return "" if isinstance(penalty, int | float) and penalty >= 0 else f"misuse_penalty {penalty!r}: a number from 0 on"


def prepare_sft(args):
    _source(args).prepare_sft(args)


def prepare_bench(args):
    _source(args).prepare_bench(args)


def _source(args):
    generated = [name for name in ("train_size", "single_size", "multi_size", "request_size", "domain_size") if getattr(args, name, None) is not None]
    if getattr(args, "source", "synthetic") != "synthetic":
        raise SystemExit(f"--source {args.source}: the fund assistant has its generator, or your own requests by --requests FILE")
    if getattr(args, "requests", None) is None:
        if getattr(args, "tools", None) is not None:
            raise SystemExit("--tools needs --requests FILE: the generator's requests are about the six tools of the task")
        from tasks import fund_synthetic as source
    else:
        if generated and not getattr(args, "smoke", False):
            raise SystemExit(f"--{generated[0].replace('_', '-')} is for generated requests; with --requests the file has the rows")
        if getattr(args, "labels", "right") == "wrong":
            raise SystemExit("--labels wrong is for generated requests; with --requests the labels are those of the file")
        from tasks import fund_files as source
    return source
