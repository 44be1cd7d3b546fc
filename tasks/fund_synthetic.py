"""Synthetic requests to the fund assistant, with ground truth: tool, parameters, thought and plan (seed 003, sections 2.2, 7.1 and 7.5).

    python prepare_data.py all --task fund
    python prepare_data.py all --task fund --form tool-only --labels wrong --output datasets-wrong    # the seed's wrong labels
    python prepare_data.py bench --task fund --oversample 3                                             # weak categories three times
    python -m tasks.fund_synthetic                                                                      # a few rows of each kind, to read

| category | what it takes | share of single rows |
|---|---|---|
| simple | the words name the tool; one intent in seven is ambiguous on purpose (withdraw, or look first?) | 7/16 |
| domain | a sale is paid on the next trading day (T+1): when the money comes is in the history, what has come is in the balance | 3/16 |
| intraday | trading hours: asking for them, ordering within them, asking whether an order made it | 3/16 |
| combination | two or three steps: the first now, the rest in the plan | 3/16 |

Requests of several steps are run on the account of `fund_world` to get their results; each becomes one row a step (kind multi) or, for
dev and test, one row that is run as a whole (kind request). What a condition decides depends on the account alone, never on the words.

Training, dev and test share no wording, account, symbol or payee (fund_wordings.share); sft_val is drawn from dev's.
"""

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from datetime import date, datetime, time, timedelta
from pathlib import Path

import numpy as np

from tasks import fund_wordings as say

SIZES = {"single": 454, "multi": 823, "request": 0, "domain": 0}  # rows of bench_rl_train by kind (seed 003, sections 7.5 and 3.1.3)
SCHEDULE = ("balance", "settlement", "hours", "combination", "transfer", "withdraw", "session_order", "combination", "unsure_withdraw",
            "settlement", "filled", "order", "history", "settled", "market", "combination")  # mixed: a small set has every category  # fmt: skip
WEAK = ("domain", "intraday", "combination")  # what --oversample repeats: the categories in which the seed's baseline was weak
LANGUAGES = {"both": ("en", "zh"), "en": ("en",), "zh": ("zh",)}
SIDES = {"en": {"buy": "buy", "sell": "sell"}, "zh": {"buy": "买入", "sell": "卖出"}}
PARAMS = {  # intent -> parameters, out of what was drawn
    "balance": ("account",), "transfer": ("amount", "to"), "withdraw": ("amount", "account"), "order": ("side", "symbol", "quantity"),
    "history": ("symbol",), "market": (), "unsure_withdraw": ("account",), "settlement": ("symbol",), "settled": ("account",),
    "hours": (), "session_order": ("side", "symbol", "quantity"), "filled": ("symbol",),
}  # fmt: skip
CLAUSE_PARAMS = {"transfer_funds": ("amount", "to"), "withdraw_funds": ("amount",), "place_order": ("side", "symbol", "quantity"),
                 "get_transaction_history": ("symbol",), "check_balance": ("account",)}  # fmt: skip
THOUGHTS = {
    "balance": ("The customer asks about cash, therefore a balance check will do.", "客户问的是资金，所以查询账面即可。"),
    "transfer": ("Someone is to be paid, therefore this is a transfer.", "款项要付给别人，所以用转账工具。"),
    "withdraw": ("The sum is known to be there, therefore pay it out at once.", "客户已确认资金充裕，所以立即办理出款。"),
    "order": ("This is a trade in shares, therefore an order must be placed.", "这是股票买卖，因此要提交委托。"),
    "history": ("Past dealings are wanted, therefore the records answer this.", "客户要看过去的往来，因此调取历史。"),
    "market": ("Only the state of trading is asked, therefore look that up.", "只问交易是否进行，所以查询状态。"),
    "unsure_withdraw": ("Nobody has said that the cash suffices, therefore look before paying.", "尚不清楚资金是否充足，所以先核实。"),
    "settlement": ("Sales settle one trading day later, therefore the records give the payment date.", "卖出款隔一个交易日结算，因此到账日要看历史。"),
    "settled": ("That sale has settled, therefore only the available cash matters.", "那笔款已结清，所以只需核实可动用资金。"),
    "hours": ("Whether a deal is possible depends on trading hours, therefore ask for the status.", "能否成交取决于时段，所以查询状态。"),
    "session_order": ("Trading is on at that time, therefore the order can go out.", "此刻处于交易时段，因此直接提交委托。"),
    "filled": ("The order lies in the past, therefore its fate is in the records.", "委托早已提交，因此结果要看历史。"),
}


# ---------------------------------------------------------------- drawing


def pick(rng, items):
    return items[int(rng.integers(len(items)))]


def draw_amount(rng, lang):
    """(as people write it, value)"""
    value = int(rng.integers(1, 40)) * pick(rng, (25, 100, 1000, 5000))
    if value % 10000 == 0 and lang == "zh":
        return f"{value // 10000}万", value
    if value % 1000 == 0 and rng.random() < 0.6:
        return (f"{value // 1000}k" if lang == "en" else f"{value // 1000}千" if value < 10000 else f"{value}元"), value
    return f"{value}" + ("元" if lang == "zh" else ""), value


def draw(rng, split, lang):
    """(slots of a wording, values of parameters)"""
    low, high = say.ACCOUNTS[split]
    text, amount = draw_amount(rng, lang)
    side, minutes = pick(rng, ("buy", "sell")), int(rng.integers(9 * 60 + 35, 14 * 60 + 55))
    values = {"account": f"ACC{rng.integers(low, high + 1)}", "amount": amount, "to": pick(rng, say.PAYEES[split][lang]), "side": side,
              "symbol": pick(rng, say.SYMBOLS[split]), "quantity": int(rng.integers(1, 90))}  # fmt: skip
    word = SIDES[lang][side]
    slots = values | {"amount": text, "side": word, "Side": word.capitalize(), "n": values["quantity"], "day": pick(rng, say.DAYS[lang]),
                      "time": f"{minutes // 60}:{minutes % 60:02d}"}  # fmt: skip
    return slots, values


def wording(rng, items, split, name):
    """(wording, its name) from the split's part of a list."""
    index, text = pick(rng, say.share(items, split))
    return text, f"{name}/{index}"


def plan_entry(tool, params):
    return " ".join([tool, *map(str, params.values())])


NAMES = [name for split in say.SPLITS for name in (*say.SYMBOLS[split], *say.PAYEES[split]["en"], *say.PAYEES[split]["zh"])]
NAMED = re.compile(rf"ACC\d+|(?<![A-Za-z])(?:{'|'.join(NAMES)})(?![A-Za-z])")


def entities(text):
    """Names of accounts, symbols and payees in a text, of whatever split: `check_splits` is to find strays."""
    return sorted(set(NAMED.findall(text)))


def make_single(rng, split, lang, intent):
    """One request of one step: {request, category, expected, wording, ambiguous, accepted}."""
    tool, category, texts = say.INTENTS[intent]
    slots, values = draw(rng, split, lang)
    text, name = wording(rng, texts[lang], split, f"{lang}/{intent}")
    params = {key: values[key] for key in PARAMS[intent]}
    unsure = intent == "unsure_withdraw"
    expected = {"tool": tool, "params": params, "thought": THOUGHTS[intent][lang == "zh"], "plan": [plan_entry(tool, params)]}
    request = wording(rng, say.OPENERS[lang], split, "")[0] + text.format(**slots)
    return {"request": request, "category": category, "intent": intent, "expected": expected, "wording": [name],
            "ambiguous": unsure, "accepted": [tool, "withdraw_funds"] if unsure else [tool]}  # fmt: skip


# ---------------------------------------------------------------- requests of several steps


def make_clause(rng, split, lang, tool, main, side=None):
    """One step: {tool, params, text, name}; `side` fixes that of an order."""
    slots, values = draw(rng, split, lang)
    if side:
        values["side"], slots["side"] = side, SIDES[lang][side]
    values["account"] = slots["account"] = main
    text, name = wording(rng, say.CLAUSES[tool][lang], split, f"{lang}/clause {tool}")
    return {"tool": tool, "params": {key: values[key] for key in CLAUSE_PARAMS[tool]}, "text": text.format(**slots), "name": name}


def make_state(rng, split, main, clauses, market_open):
    """An account on which the clauses can be done; its cash is what they need and some more."""
    prices = {symbol: int(rng.integers(10, 400)) for symbol in say.SYMBOLS[split]}
    held = rng.permutation(say.SYMBOLS[split])[:2].tolist()
    holdings = {symbol: {"quantity": int(rng.integers(1, 60)), "cost": int(rng.integers(10, 400))} for symbol in held}
    for clause in clauses:
        params = clause["params"]
        if clause["tool"] == "place_order" and params["side"] == "sell":
            holdings[params["symbol"]] = {"quantity": params["quantity"] + int(rng.integers(0, 30)), "cost": int(rng.integers(10, 400))}
    day = date(2026, 1, 5) + timedelta(days=int(rng.integers(0, 170)))
    from tasks.fund_world import is_trading_day, next_trading_day

    day = day if is_trading_day(day) else next_trading_day(day)
    clock = time(int(rng.integers(*((10, 15) if market_open else (16, 23)))), int(rng.integers(60)))
    history = []
    for ago, symbol in zip((40, 20), holdings):
        text = f"bought {int(rng.integers(1, 60))} {symbol} at {prices[symbol]}"
        history.append({"day": (day - timedelta(days=ago)).isoformat(), "symbol": symbol, "text": text})
    now = datetime.combine(day, clock).isoformat(timespec="minutes")
    state = {"now": now, "main": main, "cash": {main: 0}, "holdings": holdings, "prices": prices, "history": history}
    state["cash"][main] = needs(clauses, prices) + int(rng.integers(10, 5000))
    return state


def needs(clauses, prices):
    """Cash that the clauses take."""
    total = 0
    for clause in clauses:
        params = clause["params"]
        total += params.get("amount", 0)
        if clause["tool"] == "place_order" and params["side"] == "buy":
            total += prices[params["symbol"]] * params["quantity"]
    return total


def make_request(rng, split, lang, count):
    """A request of `count` steps with its account: {request, path, state, end, wording, condition}."""
    low, high = say.ACCOUNTS[split]
    main = f"ACC{rng.integers(low, high + 1)}"
    if count == 2 and rng.random() < 0.55:
        text, steps, state, names, condition = conditional(rng, split, lang, main)
    else:
        tools = [str(tool) for tool in rng.permutation(list(say.CLAUSES))[:count]]
        steps = [make_clause(rng, split, lang, tool, main) for tool in tools]
        template, link = wording(rng, say.LINKS[count][lang], split, f"{lang}/link{count}")
        text = template.format(**dict(zip(("first", "second", "third"), (step["text"] for step in steps))))
        state = make_state(rng, split, main, steps, "place_order" in tools or rng.random() < 0.5)
        names, condition = [link, *(step["name"] for step in steps)], None
        for number, step in enumerate(steps):
            step["plan"] = [plan_entry(later["tool"], later["params"]) for later in steps[number:]]
    text = wording(rng, say.OPENERS[lang], split, "")[0] + (text[0].upper() + text[1:] if lang == "en" else text)
    path, end = run_path(steps, state, lang, condition)
    return {"request": text, "path": path, "state": state, "end": end, "wording": names, "condition": condition}


def conditional(rng, split, lang, main):
    """A look, and what it decides. Returns (text, steps, state, wording names, {kind, else, holds, limit, held}): limit in money,
    or in percent of profit on the symbol `held`."""
    kind, has_else = pick(rng, list(say.CONDITIONS))
    template, name = wording(rng, say.CONDITIONS[kind, has_else][lang], split, f"{lang}/if {kind} {has_else}")
    tool = "place_order" if kind in ("gain", "open") else pick(rng, ("transfer_funds", "withdraw_funds", "place_order"))
    then = make_clause(rng, split, lang, tool, main, "sell" if kind == "gain" else "buy")
    other = make_clause(rng, split, lang, pick(rng, [t for t in ("transfer_funds", "get_transaction_history") if t != tool]), main)
    holds = bool(rng.random() < 0.5) or not has_else
    chosen = then if holds else other
    state = make_state(rng, split, main, [then, other], holds if kind == "open" else True)
    limit = held = None
    slots = {"account": main, "second": then["text"], "other": other["text"]}
    if kind == "balance" and has_else:
        needed = needs([then, other], state["prices"])  # either way the account can bear what is done
        thousands = needed // 1000 + int(rng.integers(1, 100))
        limit, slots["limit"] = thousands * 1000, f"{thousands}k" if lang == "en" else f"{thousands / 10:g}万"
        state["cash"][main] = limit + int(rng.integers(0, limit)) if holds else int(rng.integers(needed, limit))
    if kind == "gain":
        symbol, percent, cost = then["params"]["symbol"], pick(rng, (5, 10, 15, 20)), int(rng.integers(50, 300))
        change = percent + rng.uniform(3, 25) * (1 if holds else -1)
        state["holdings"][symbol]["cost"], state["prices"][symbol] = cost, round(cost * (1 + change / 100))
        slots |= {"held": symbol, "gain": percent}
        limit, held = percent, symbol
    look = {"tool": "check_market_status", "params": {}} if kind == "open" else {"tool": "check_balance", "params": {"account": main}}
    entry, second = plan_entry(look["tool"], look["params"]), plan_entry(then["tool"], then["params"])
    look["plan"] = [entry, f"{second} or {plan_entry(other['tool'], other['params'])}" if has_else else f"{second} if enough"]
    chosen["plan"] = [plan_entry(chosen["tool"], chosen["params"])]
    names = [name, then["name"], *([other["name"]] if has_else else [])]
    found = {"kind": kind, "else": has_else, "holds": holds, "limit": limit, "held": held}
    return template.format(**slots), [look, chosen], state, names, found


def run_path(steps, state, lang, condition):
    """The steps done on the account: [{tool, params, thought, plan, result}], and how the account ends."""
    from tasks.fund_world import open_account, run_tool, snapshot

    account, path = open_account(state), []
    for number, step in enumerate(steps, 1):
        thought = think(number, steps, path[-1]["result"] if path else "", lang, condition)
        result, done = run_tool(account, step["tool"], step["params"])
        if not done:
            raise AssertionError(f"the generator made a step that can't be done: {step['tool']} {step['params']}: {result}")
        path.append({"tool": step["tool"], "params": step["params"], "thought": thought, "plan": step["plan"], "result": result})
    return path, snapshot(account)


def think(number, steps, result, lang, condition):
    tool, result = steps[number - 1]["tool"].replace("_", " "), result.partition(";")[0]
    if number == 1 and condition:
        return f"The outcome decides what follows, so first {tool}." if lang == "en" else f"后续取决于结果，因此先执行 {tool}。"
    if number == 1:
        english, count = f"There are {len(steps)} steps and their order matters, so first {tool}.", len(steps)
        return english if lang == "en" else f"这里共有{count}个动作且有顺序，因此先执行 {tool}。"
    if condition:
        holds = condition["holds"]
        if lang == "en":
            return f"The look gave {result}; the condition {'is met' if holds else 'fails'}, therefore {tool}."
        return f"结果是 {result}，条件{'成立' if holds else '不成立'}，因此执行 {tool}。"
    return f"Step {number - 1} gave {result}, therefore {tool} comes now." if lang == "en" else f"上一动作结果：{result}，因此现在执行 {tool}。"


# ---------------------------------------------------------------- rows


def options(args):
    """What the flags of `tasks/fund.py` decide about rows; those that are not given keep their defaults."""
    from tasks.fund_rewards import check_mode

    known = {"form": "react", "labels": "right", "languages": "both", "oversample": 1, "reward_mode": "ground-truth", "misuse_penalty": 0.0}
    chosen = {name: default if getattr(args, name, None) is None else getattr(args, name) for name, default in known.items()}
    for name, allowed in (("form", ("react", "tool-only")), ("labels", ("right", "wrong"))):
        if chosen[name] not in allowed:
            raise SystemExit(f"--{name} {chosen[name]!r}: choose {' or '.join(allowed)}")
    if not isinstance(chosen["oversample"], int) or chosen["oversample"] < 1:
        raise SystemExit(f"--oversample {chosen['oversample']!r}: a whole number from 1 on (1 = each row once)")
    check_mode(chosen["reward_mode"])
    return chosen


def make_row(name, kind, category, split, lang, made, expected, previous, chosen):
    """A row as tasks/fund.py reads it."""
    from tasks.fund import messages

    seen = [made["request"], json.dumps([made.get("path", expected), made.get("state")], ensure_ascii=False)]
    row = {
        "id": name, "task": category, "source_name": "synthetic-" + hashlib.sha256(made["request"].encode()).hexdigest()[:12], "kind": kind,
        "form": chosen["form"], "split": split, "lang": lang, "request": made["request"], "label": expected["tool"],
        "expected": {key: expected[key] for key in ("tool", "params", "thought", "plan")}, "several": "path" in made,
        "ambiguous": made.get("ambiguous", False), "accepted": made.get("accepted", [expected["tool"]]), "intent": made.get("intent"),
        "condition": made.get("condition"), "wording": made["wording"], "entities": entities(" ".join(seen)),
        "reward_mode": chosen["reward_mode"], "misuse_penalty": chosen["misuse_penalty"], "images": [],
        "messages": messages(made["request"], previous, chosen["form"]),
    }  # fmt: skip
    if kind == "request":
        row |= {key: made[key] for key in ("path", "state", "end")} | {"label": " > ".join(step["tool"] for step in made["path"])}
    return row


def make_rows(name, split, sizes, seed, chosen):
    """Rows of one file: sizes {single, multi, request, domain}. Decided by (seed, name) alone; the order is mixed."""
    rng, rows, seen = np.random.default_rng([seed, *map(ord, name)]), [], set()

    def new(make):
        for _ in range(2000):
            lang = pick(rng, LANGUAGES[chosen["languages"]])
            made = make(lang)
            if made["request"] not in seen:
                seen.add(made["request"])
                return lang, made
        flag = "--sft-size" if name.startswith("sft") else f"--{name}-size" if name in ("dev", "test") else "--single-size and --multi-size"
        raise SystemExit(f"{flag}: the wordings of {split} are used up after {len(seen)} rows and more were asked for ({sizes}); take less, or --languages both")

    for number in range(sizes.get("single", 0)):
        intent = SCHEDULE[number % len(SCHEDULE)]
        if intent == "combination":
            lang, made = new(lambda lang: make_request(rng, split, lang, pick(rng, (2, 2, 3))))
            rows.append(make_row(f"{name}-single-{number:05d}", "single", "combination", split, lang, made, made["path"][0], [], chosen))
        else:
            lang, made = new(lambda lang, intent=intent: make_single(rng, split, lang, intent))
            category = made["category"]
            rows.append(make_row(f"{name}-single-{number:05d}", "single", category, split, lang, made, made["expected"], [], chosen))
    left, number = sizes.get("multi", 0), 0
    while left > 0:
        count = left if left in (2, 3) else pick(rng, (2, 3)) if left > 4 else 2  # so that exactly as many rows come out as were asked for
        lang, made = new(lambda lang, count=count: make_request(rng, split, lang, count))
        for step, expected in enumerate(made["path"][:left]):
            previous = [(done["tool"], done["result"]) for done in made["path"][:step]]
            rows.append(make_row(f"{name}-multi-{number:05d}-s{step + 1}", "multi", "multi", split, lang, made, expected, previous, chosen))
        left, number = left - min(left, len(made["path"])), number + 1
    for number in range(sizes.get("request", 0)):
        lang, made = new(lambda lang: make_request(rng, split, lang, pick(rng, (2, 2, 3))))
        rows.append(make_row(f"{name}-request-{number:05d}", "request", "request", split, lang, made, made["path"][0], [], chosen))
    for number in range(sizes.get("domain", 0)):  # last, so that the others stay the same
        intent = ("settlement", "settlement", "settled")[number % 3]
        lang, made = new(lambda lang, intent=intent: make_single(rng, split, lang, intent))
        rows.append(make_row(f"{name}-domain-{number:05d}", "single", "domain", split, lang, made, made["expected"], [], chosen))
    return [rows[i] for i in rng.permutation(len(rows))]


def mislabel(row):
    """The seed's wrong label (section 3.5.1): the first step of a combination is said to be check_balance."""
    later = "Previous steps:" in row["messages"][-1]["content"]
    if not row["several"] or row["kind"] == "request" or later or row["label"] == "check_balance":
        return row
    plan = [*row["expected"]["plan"]]
    plan[0] = "check_balance"
    expected = row["expected"] | {"tool": "check_balance", "params": {}, "plan": plan}
    return row | {"label": "check_balance", "expected": expected, "mislabelled": True}


def training(rows, chosen):
    """The data switches, which touch training rows only."""
    rows = [mislabel(row) for row in rows] if chosen["labels"] == "wrong" else rows
    more = [row | {"id": f"{row['id']}-x{copy}"} for copy in range(2, chosen["oversample"] + 1) for row in rows if row["task"] in WEAK]
    return rows + more


def demonstrate(row):
    from tasks.fund import reply_text

    text = reply_text(row["expected"], row["form"])
    return row | {"messages": [*row["messages"], {"role": "assistant", "content": text}]}


# ---------------------------------------------------------------- files


def write_folder(folder, files, stats_name, settings):
    """Write {name: rows} into a folder beside the final one, check the splits, swap. What was there before stays until then."""
    from protocol import write_jsonl

    fresh, stats = folder.with_name(folder.name + ".part"), {"settings": settings}
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name, rows in files.items():
        write_jsonl(fresh / f"{name}.jsonl", rows)
        stats[name] = {"rows": len(rows)}
        for key in ("kind", "task", "lang", "label"):
            stats[name][key] = dict(sorted(Counter(str(row.get(key)) for row in rows).items()))
        stats[name] |= {key: sum(bool(row.get(key)) for row in rows) for key in ("ambiguous", "mislabelled")}
    stats["shared_between_splits"] = check_splits(files)
    (fresh / stats_name).write_text(json.dumps(stats, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.rename(folder, old)
    os.rename(fresh, folder)
    shutil.rmtree(old, ignore_errors=True)
    print(f"{folder}: " + ", ".join(f"{name} {len(rows)}" for name, rows in files.items()))


def check_splits(files):
    """{field: shared values between files of different splits}: must be nothing for generated rows."""
    shared = {}
    for key in ("wording", "entities", "request"):
        where = {}
        for rows in files.values():
            for row in rows:
                for value in [row["request"]] if key == "request" else row.get(key, []):
                    where.setdefault(value, set()).add(row["split"])
        shared[key] = sum(len(splits) > 1 for splits in where.values())
    if any(shared.values()):
        raise SystemExit(f"splits share what they must not: {shared}")
    return shared


def prepare_sft(args):
    """sft_train.jsonl, sft_val.jsonl, sft_stats.json: prompt and reply; single and multi rows in the proportion of the seed's final set."""
    chosen, held_out = options(args), max(1, round(args.sft_size * args.val_fraction))
    train = training(make_rows("sft-train", "train", mixture(args.sft_size - held_out, args), args.seed, chosen), chosen)
    files = {"sft_train": train, "sft_val": make_rows("sft-val", "dev", mixture(held_out, args), args.seed, chosen)}
    settings = {"source": "synthetic", "seed": args.seed, "sft_size": args.sft_size, **chosen}
    files = {name: [demonstrate(row) for row in rows] for name, rows in files.items()}
    write_folder(Path(args.output) / "fund" / "sft", files, "sft_stats.json", settings)


def mixture(count, args):
    """Single and multi rows in the seed's proportion; single rows alone where --multi-size 0 was asked for."""
    single = round(count * SIZES["single"] / (SIZES["single"] + SIZES["multi"]))
    return {"single": count, "multi": 0} if getattr(args, "multi_size", None) == 0 else {"single": single, "multi": count - single}


def prepare_bench(args):
    """bench_rl_train.jsonl, bench_dev.jsonl, bench_test.jsonl, bench_stats.json. Half of dev and test are single rows, a third multi, the
    rest requests; with --multi-size 0 all are single."""
    chosen = options(args)
    sizes = SIZES if getattr(args, "train_size", None) is None else SIZES | mixture(args.train_size, args)
    sizes = sizes | {kind: getattr(args, f"{kind}_size") for kind in SIZES if getattr(args, f"{kind}_size", None) is not None}
    files = {"bench_rl_train": training(make_rows("rl", "train", sizes, args.seed, chosen), chosen)}
    for split in ("dev", "test"):
        total = getattr(args, f"{split}_size")
        parts = {"single": total // 2, "multi": total // 3, "request": total - total // 2 - total // 3}
        parts = {"single": total} if getattr(args, "multi_size", None) == 0 else parts
        files[f"bench_{split}"] = make_rows(split, split, parts, args.seed, chosen)
    if not sizes["single"] + sizes["multi"]:
        raise SystemExit("--single-size 0 and --multi-size 0: nothing would be trained; give one of them a number")
    settings = {"source": "synthetic", "seed": args.seed, **{f"{kind}_size": count for kind, count in sizes.items()}, **chosen}
    write_folder(Path(args.output) / "fund" / "rl", files, "bench_stats.json", settings)


if __name__ == "__main__":
    from types import SimpleNamespace

    for row in make_rows("look", "train", {"single": 32, "multi": 16, "request": 4}, 0, options(SimpleNamespace())):
        print(f"[{row['task']}{', ambiguous' if row['ambiguous'] else ''}] {row['messages'][-1]['content']}")
        print("    " + json.dumps(row["expected"], ensure_ascii=False))
