"""The fund assistant: rewards against numbers worked by hand, attempts to game them, the account's rules, the data, the gold policy."""

import asyncio
import json
from collections import Counter
from datetime import datetime
from types import SimpleNamespace

import pytest
from helpers import ScriptedSampler, tiny_folder

from policies import ScriptedPolicy
from protocol import SamplingParams, load_chat, read_jsonl
from rollout import rollout, trajectory_from_json, trajectory_to_json
from tasks import fund, fund_synthetic, fund_world
from tasks import fund_rewards as rewards
from tasks import fund_wordings as say

REQUEST = "Send 100 to Ann, then withdraw 50."
EXPECTED = {"tool": "transfer_funds", "params": {"amount": 100, "to": "Ann"}}
GOOD = {
    "thought": "Two jobs are wanted, so first comes the payment.",
    "action": {"tool": "transfer_funds", "params": {"amount": 100, "to": "Ann"}},
    "plan": ["transfer_funds 100 Ann", "withdraw_funds 50"],
}
ARGS = {"seed": 3, "sft_size": 60, "val_fraction": 0.2, "dev_size": 60, "test_size": 60}
ARGS |= {"single_size": 64, "multi_size": 61, "request_size": 12}


def reply(**changes):
    return fund.read_reply(json.dumps(GOOD | changes))


def act(tool="transfer_funds", **params):
    return {"tool": tool, "params": params}


def score(mode, answer, multi=True, penalty=0.0, request=REQUEST):
    return rewards.score(mode, answer, EXPECTED, request, multi, penalty)


def total(*args, **options):
    return round(sum(score(*args, **options).values()), 6)


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return load_chat(tiny_folder(tmp_path_factory.mktemp("model"), "qwen3", weights=False))


def prepare(folder, **options):
    args = SimpleNamespace(**(ARGS | {"output": folder} | options))
    fund.prepare_sft(args)
    fund.prepare_bench(args)
    names = ("sft/sft_train", "sft/sft_val", "rl/bench_rl_train", "rl/bench_dev", "rl/bench_test")
    return {name[name.index("/") + 1 :]: read_jsonl(folder / "fund" / f"{name}.jsonl") for name in names}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("fund"))


# ---------------------------------------------------------------------------------------------------------------------
# rewards, by hand


def test_rewards_of_a_good_reply():
    assert score("rules", reply()) == {"thought": 0.2, "action": 0.3, "valid_tool": 0.2, "params": 0.1}
    assert total("rules", reply()) == 0.8
    assert total("rules-full", reply()) == 1.0
    assert score("ground-truth", reply()) == {"tool": 0.5, "params": 0.2, "thought": 0.1, "logic": 0.05, "plan": 0.15}
    assert total("ground-truth", reply()) == 1.0


@pytest.mark.parametrize(
    "changes, expected",
    [  # rules, rules-full, rules-tool, ground-truth
        ({"action": act("withdraw_funds", amount=50)}, (0.8, 1.0, 0.5, 0.1 + 0.3)),  # legal but wrong: the rules can't tell
        ({"action": act("transfer_money", amount=100)}, (0.2, 0.4, 0.2, 0.3)),  # no such tool: 0 for tool and parameters
        ({"action": act(amount=99, to="Ann")}, (0.8, 1.0, 0.8, 0.8)),  # fits the schema, but isn't what was asked for
        ({"action": act(amount=100.0, to=" ann ")}, (0.8, 1.0, 0.8, 1.0)),  # equal by value
        ({"action": act(amount="100", to="Ann")}, (0.7, 0.9, 0.7, 0.8)),
        ({"action": act(amount=100)}, (0.7, 0.9, 0.7, 0.8)),
        ({"thought": "The payment has to go out as the customer wishes."}, (0.8, 1.0, 0.8, 0.95)),  # no logic word
        ({"thought": "Firstly mention thence the beforehand payment."}, (0.8, 1.0, 0.8, 0.95)),  # only whole words count
    ],
)
def test_rewards_of_worse_replies(changes, expected):
    modes = ("rules", "rules-full", "rules-tool", "ground-truth")
    assert tuple(total(mode, reply(**changes)) for mode in modes) == pytest.approx(expected)


def test_empty_plan_in_a_request_of_several_steps_forfeits_the_reasoning_too():
    assert total("ground-truth", reply(plan=[])) == 0.7
    assert total("ground-truth", reply(plan=[]), multi=False) == 1.0
    assert total("rules-full", reply(plan=[])) == 1.0  # the rules only ask whether the field is there


@pytest.mark.parametrize("mode", rewards.MODES)
def test_misuse_penalty(mode):
    status = reply(action=act("check_market_status"))
    assert total(mode, status) - total(mode, status, penalty=0.3) == pytest.approx(0.3)
    assert total(mode, status, penalty=0.3, request="Is the market open?") == total(mode, status, request="Is the market open?")
    assert total(mode, status, penalty=0.3, request="现在开市吗？") == total(mode, status, request="现在开市吗？")
    assert total(mode, reply(), penalty=0.3) == total(mode, reply())


def test_full_reward_and_unknown_mode():
    assert [round(rewards.full_reward(mode), 9) for mode in rewards.MODES] == [0.8, 1.0, 0.8, 1.0, 1.0]
    assert [round(rewards.full_reward(mode, "tool-only"), 9) for mode in rewards.MODES] == [0.6, 0.6, 0.6, 0.6, 0.7]
    with pytest.raises(SystemExit, match="reward_mode 'best'"):
        rewards.full_reward("best")


# ---------------------------------------------------------------------------------------------------------------------
# attempts to game them: (what is tried, rules-full, ground-truth). An honest reply has 1.0 in both.

PROBES = {
    "keywords": ({"thought": "first then before because therefore since"}, 1.0, 0.85),
    "keywords in Chinese": ({"thought": "先先然后因为所以需要"}, 1.0, 0.85),
    "one keyword": ({"thought": "because"}, 1.0, 0.85),
    "a word again and again": ({"thought": "pay pay pay pay pay pay pay then pay"}, 1.0, 0.85),
    "the request as thought": ({"thought": REQUEST}, 1.0, 0.85),
    "the request, a little shorter": ({"thought": "Send 100 to Ann then withdraw"}, 1.0, 0.85),
    "the request as plan": ({"plan": [REQUEST]}, 1.0, 0.7),
    "a blank plan": ({"plan": [" "]}, 1.0, 0.7),
    "one entry many times": ({"plan": ["pay", "pay"]}, 1.0, 0.7),
    "an endless plan": ({"plan": [f"step {n}" for n in range(20)]}, 1.0, 0.7),
    "plan as text": ({"plan": "pay, then withdraw"}, 0.8, 0.7),
    "always the harmless tool": ({"action": act("check_balance")}, 1.0, 0.4),
}


@pytest.mark.parametrize("name", PROBES)
def test_gaming(name):
    changes, by_rules, by_truth = PROBES[name]
    answer = reply(**changes)
    assert (total("rules-full", answer), total("ground-truth", answer)) == pytest.approx((by_rules, by_truth))


def test_what_the_ground_truth_reward_does_not_see():
    """Known limits: a plan of any two different words and a thought about nothing earn their parts. They are worth 0.3 in all."""
    assert total("ground-truth", reply(thought="Cats sleep all day because they can.", plan=["foo", "bar"])) == 1.0


@pytest.mark.parametrize("text", [json.dumps(GOOD)[:-1], json.dumps(GOOD)[:-8], json.dumps(GOOD) + "!", json.dumps(GOOD) * 2, "[]",
                                  "{}", json.dumps(GOOD).replace('"plan"', '"plan": [], "plan"'),
                                  '"action tool transfer_funds plan"'])  # fmt: skip
@pytest.mark.parametrize("mode", rewards.MODES)
def test_json_that_can_be_read_in_part_earns_nothing(text, mode):
    assert total(mode, fund.read_reply(text), penalty=0.3) == 0.0


# ---------------------------------------------------------------------------------------------------------------------
# the one parser


@pytest.mark.parametrize(
    "text, code",
    [
        ("", "empty"),
        ("I would transfer it.", "no_json"),
        (f"Sure: {json.dumps(GOOD)}", "around"),
        (json.dumps(GOOD)[:-1], "around"),
        (json.dumps(GOOD).replace(":", "=", 1), "bad_json"),
        ('{"thought": NaN, "action": {}, "plan": []}', "bad_json"),
        ("[" + json.dumps(GOOD) + "]", "not_object"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "thought"}), "lacks"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "plan"}), "lacks"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "action"}), "lacks"),
        (json.dumps(GOOD | {"observation": "done"}), "extra"),
        (json.dumps(GOOD | {"action": GOOD["action"] | {"why": 1}}), "extra"),
        (json.dumps(GOOD | {"thought": ["a"]}), "thought"),
        (json.dumps(GOOD | {"thought": " "}), "thought"),
        (json.dumps(GOOD | {"action": "transfer_funds"}), "action"),
        (json.dumps(GOOD | {"action": {"params": {}}}), "tool"),
        (json.dumps(GOOD | {"action": act("pay")}), "unknown_tool"),
        (json.dumps(GOOD | {"action": {"tool": "withdraw_funds", "params": [5]}}), "params"),
        (json.dumps(GOOD | {"action": act(amount=1)}), "params"),
        (json.dumps(GOOD | {"action": act("check_market_status", day=1)}), "params"),
        (json.dumps(GOOD | {"action": act("place_order", side="hold", symbol="A", quantity=1)}), "params"),
        (json.dumps(GOOD | {"plan": ["a", 1]}), "plan"),
    ],
)
def test_each_failure_has_its_reason(text, code):
    assert fund.read_reply(text).error.startswith(code + ": ")
    assert "\n" not in fund.read_reply(text).error


def test_good_replies():
    assert not reply().faults and reply().params_ok
    assert fund.read_reply(f"```json\n{json.dumps(GOOD)}\n```") == reply()
    plain = fund.read_reply('{"tool": "check_balance"}', "tool-only")
    assert (plain.tool, plain.params, plain.params_ok, plain.error) == ("check_balance", {}, True, "")
    assert fund.read_reply(json.dumps(GOOD), "tool-only").error.startswith("lacks: no tool")


# ---------------------------------------------------------------------------------------------------------------------
# the account

FRIDAY = "2026-03-06T11:00"


def account(now=FRIDAY, **changes):
    state = {"now": now, "main": "ACC1", "cash": {"ACC1": 1000, "ACC2": 0}}
    state |= {"holdings": {"KO": {"quantity": 10, "cost": 50}}, "prices": {"KO": 60}}
    return fund_world.open_account(state | changes)


def run(state, tool, **params):
    return fund_world.run_tool(state, tool, params)


HOLIDAY = ("2026-04-02T10:00", "2026-04-06")  # Good Friday and a weekend


@pytest.mark.parametrize("now, day", [(FRIDAY, "2026-03-09"), ("2026-03-05T10:00", "2026-03-06"), HOLIDAY])
def test_a_sale_is_paid_on_the_next_trading_day(now, day):
    state = account(now)
    assert run(state, "place_order", side="sell", symbol="KO", quantity=4) == (f"sold 4 KO at 60, paid on {day}", True)
    assert state.cash["ACC1"] == 1000 and f"240 arriving on {day}" in run(state, "check_balance")[0]
    assert not run(state, "withdraw_funds", amount=1100)[1]  # the proceeds can't be spent yet
    assert day in run(state, "get_transaction_history", symbol="KO")[0]
    fund_world.advance(state, datetime.fromisoformat(day + "T00:00"))
    assert state.cash["ACC1"] == 1240 and not state.pending and run(state, "withdraw_funds", amount=1100)[1]


def test_weekend_before_monday_pays_nothing():
    state = account()
    run(state, "place_order", side="sell", symbol="KO", quantity=4)
    fund_world.advance(state, datetime(2026, 3, 8, 23, 59))
    assert state.cash["ACC1"] == 1000
    with pytest.raises(ValueError, match="back"):
        fund_world.advance(state, datetime(2026, 3, 1))


CLOCK = {"2026-03-06T09:29": False, "2026-03-06T09:30": True, "2026-03-06T14:59": True}
CLOCK |= {"2026-03-06T15:00": False, "2026-03-07T11:00": False, "2026-05-01T11:00": False}  # closing, a Saturday, a holiday


@pytest.mark.parametrize("now, is_open", CLOCK.items())
def test_closed_market_takes_no_order(now, is_open):
    state = account(now)
    said, done = run(state, "place_order", side="buy", symbol="KO", quantity=1)
    assert done == is_open and run(state, "check_market_status")[0].startswith("open" if is_open else "closed")
    assert is_open or "the market is closed, it opens on 2026-" in said
    if now.startswith("2026-03-07"):
        assert "2026-03-09 09:30" in said


@pytest.mark.parametrize(
    "tool, params, reason",
    [
        ("withdraw_funds", {"amount": 1001}, "insufficient balance, 1000 available and 1001 needed"),
        ("withdraw_funds", {"amount": 1, "account": "ACC2"}, "insufficient"),
        ("withdraw_funds", {"amount": 1, "account": "ACC9"}, "no account ACC9"),
        ("transfer_funds", {"amount": 2000, "to": "Ann"}, "insufficient"),
        ("transfer_funds", {"amount": 5, "to": "ACC1"}, "the account that pays"),
        ("transfer_funds", {"amount": 5, "to": ["x"]}, "nobody"),
        ("transfer_funds", {"amount": -5, "to": "Ann"}, "positive"),
        ("transfer_funds", {"amount": True, "to": "Ann"}, "positive"),
        ("transfer_funds", {"amount": float("nan"), "to": "Ann"}, "positive"),
        ("place_order", {"side": "buy", "symbol": "KO", "quantity": 17}, "insufficient"),
        ("place_order", {"side": "sell", "symbol": "KO", "quantity": 11}, "only 10 KO held"),
        ("place_order", {"side": "sell", "symbol": "XYZ", "quantity": 1}, "not traded"),
        ("place_order", {"side": "keep", "symbol": "KO", "quantity": 1}, "buy or sell"),
        ("check_balance", {"bank": 1}, "does not take"),
        ("pay", {}, "no tool"),
    ],
)
def test_what_is_refused_changes_nothing(tool, params, reason):
    state = account()
    said, done = fund_world.run_tool(state, tool, params)
    assert not done and said.startswith("Error: ") and reason in said
    assert state == account()


def test_money_is_conserved():
    state = account()
    assert run(state, "transfer_funds", amount=300, to="ACC2")[1] and state.cash == {"ACC1": 700, "ACC2": 300}
    assert run(state, "place_order", side="buy", symbol="KO", quantity=10)[1] and state.cash["ACC1"] == 100
    assert state.holdings["KO"] == {"quantity": 20, "cost": 55} and fund_world.gain(state, "KO") == pytest.approx(100 * (60 / 55 - 1))


def test_broken_state_is_one_line():
    with pytest.raises(SystemExit, match="state of a row is broken"):
        fund_world.open_account({"now": "yesterday", "main": "A", "cash": {}})


# ---------------------------------------------------------------------------------------------------------------------
# data


def test_default_sizes():
    chosen = fund_synthetic.options(SimpleNamespace())
    rows = fund_synthetic.make_rows("rl", "train", fund_synthetic.SIZES, 42, chosen)
    assert Counter(row["kind"] for row in rows) == {"single": 454, "multi": 823}
    assert len({row["id"] for row in rows}) == len(rows)
    assert {row["label"] for row in rows} == set(fund.ANSWERS)
    singles = [row for row in rows if row["kind"] == "single"]
    assert set(Counter(row["task"] for row in singles)) == {"simple", "domain", "intraday", "combination"}
    assert len({row["request"] for row in singles}) == 454 and sum(row["ambiguous"] for row in rows) == 28


def test_same_seed_same_rows(data, tmp_path):
    assert prepare(tmp_path / "a") == data
    assert prepare(tmp_path / "b", seed=4)["bench_dev"] != data["bench_dev"]


def test_splits_share_no_wording_and_no_name(data):
    splits = {"train": data["sft_train"] + data["bench_rl_train"], "dev": data["sft_val"] + data["bench_dev"], "test": data["bench_test"]}
    for key in ("wording", "entities"):
        found = {split: {value for row in rows for value in row[key]} for split, rows in splits.items()}
        assert all(found.values())
        assert not found["train"] & found["dev"] and not found["train"] & found["test"] and not found["dev"] & found["test"]
    stray = data["bench_dev"][0] | {"entities": data["bench_test"][0]["entities"]}
    with pytest.raises(SystemExit, match="splits share"):
        fund_synthetic.check_splits({"dev": [stray], "test": data["bench_test"]})


def test_wordings_are_distinct_and_market_words_are_where_they_belong():
    texts = [text for _, _, by_language in say.INTENTS.values() for lang in by_language for text in by_language[lang]]
    assert len(set(texts)) == len(texts) and all(len(by[lang]) == 10 for _, _, by in say.INTENTS.values() for lang in ("en", "zh"))
    for _, (tool, _, by_language) in say.INTENTS.items():
        if tool == "check_market_status":
            assert all(rewards.mentions_market(text) for lang in by_language for text in by_language[lang])
    for lang in ("en", "zh"):
        assert all(rewards.mentions_market(text) for text in say.CONDITIONS["open", True][lang])


def test_label_is_not_in_the_prompt(data):
    for row in data["bench_rl_train"] + data["bench_dev"]:
        user = row["messages"][-1]["content"]
        assert row["expected"]["thought"] not in user and "label" not in row["messages"][0]["content"]
        assert row["request"] in user and len(row["messages"]) == 2


def test_steps_of_a_request_carry_what_was_done(data):
    later = [row for row in data["bench_rl_train"] if row["id"].endswith("-s2")]
    assert later and all("\n\nPrevious steps:\nStep 1: " in row["messages"][-1]["content"] for row in later)
    assert all(len(row["expected"]["plan"]) >= 1 for row in data["bench_rl_train"])


def test_conditions_depend_on_the_account():
    """The same words on another account lead to another step, and both happen."""
    chosen = fund_synthetic.options(SimpleNamespace())
    rows = fund_synthetic.make_rows("x", "train", {"request": 300}, 1, chosen)
    found = [row["condition"] for row in rows if row["condition"]]
    outcomes = Counter((condition["kind"], condition["holds"]) for condition in found if condition["else"])
    assert set(outcomes) == {(kind, holds) for kind in ("balance", "gain", "open") for holds in (True, False)}
    for row in rows:  # what the account says agrees with what was decided
        if not row["condition"]:
            continue
        kind, limit, state = row["condition"]["kind"], row["condition"]["limit"], fund_world.open_account(row["state"])
        if kind == "open":
            found = fund_world.is_open(state.now)
        elif kind == "gain":
            found = fund_world.gain(state, row["condition"]["held"]) > limit
        else:
            found = limit is None or state.cash[state.main] >= limit
        assert found == row["condition"]["holds"], row["request"]
    row = next(row for row in rows if row["condition"] and row["condition"]["kind"] == "open" and row["condition"]["holds"])
    order = row["path"][1]
    night = row["state"] | {"now": row["state"]["now"][:10] + "T20:00"}
    assert fund_world.run_tool(fund_world.open_account(row["state"]), order["tool"], order["params"])[1]
    assert not fund_world.run_tool(fund_world.open_account(night), order["tool"], order["params"])[1]


def test_wrong_labels_touch_training_only(data, tmp_path):
    wrong = prepare(tmp_path, labels="wrong")
    changed = [row for row in wrong["bench_rl_train"] if row.get("mislabelled")]
    assert changed and all(row["label"] == "check_balance" and row["several"] for row in changed)
    assert not any("Previous steps" in row["messages"][-1]["content"] for row in changed)
    assert wrong["bench_dev"] == data["bench_dev"] and wrong["bench_test"] == data["bench_test"]
    shown = [json.loads(row["messages"][-1]["content"]) for row in wrong["sft_train"] if row.get("mislabelled")]
    assert shown and all(said["action"] == {"tool": "check_balance", "params": {}} for said in shown)


def test_oversampling_repeats_the_weak_categories(data, tmp_path):
    count = Counter(row["task"] for row in data["bench_rl_train"])
    more = prepare(tmp_path, oversample=3)
    again = Counter(row["task"] for row in more["bench_rl_train"])
    assert all(again[name] == count[name] * (3 if name in fund_synthetic.WEAK else 1) for name in count)
    assert len({row["id"] for row in more["bench_rl_train"]}) == len(more["bench_rl_train"]) and more["bench_dev"] == data["bench_dev"]


@pytest.mark.parametrize("options", [{"labels": "odd"}, {"form": "xml"}, {"oversample": 0}, {"reward_mode": "x"}])
def test_bad_options_are_one_line(options, tmp_path):
    with pytest.raises(SystemExit, match="choose|whole number"):
        prepare(tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_own_requests_and_tools(tmp_path):
    schema = {"type": "object", "properties": {"litres": {"type": "number"}}, "required": ["litres"]}
    tool = {"type": "function", "function": {"name": "water", "parameters": schema}}
    (tmp_path / "tools.json").write_text(json.dumps([tool]))
    lines = [{"request": f"Water the plants with {n} litres", "action": {"tool": "water", "params": {"litres": n}},
              "thought": "Plants are dry, therefore water.", "split": ("train", "dev", "test")[n % 3]} for n in range(9)]  # fmt: skip
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = {"requests": tmp_path / "own.jsonl", "tools": tmp_path / "tools.json", "single_size": None, "multi_size": None, "request_size": None}
    rows = prepare(tmp_path / "out", **own)
    assert [len(rows[name]) for name in ("sft_train", "sft_val", "bench_rl_train", "bench_dev", "bench_test")] == [3] * 5
    row = rows["bench_dev"][0]
    assert "water(litres)" in row["messages"][0]["content"] and "check_balance" not in row["messages"][0]["content"]
    assert fund.read_reply(fund.reply_text(row["expected"]), "react", row["tools"]).error == ""
    assert row["source_name"].startswith("own-")
    (tmp_path / "own.jsonl").write_text(json.dumps(lines[0] | {"action": act("fly")}) + "\n")
    with pytest.raises(SystemExit, match="own.jsonl, line 1: .*unknown_tool"):
        prepare(tmp_path / "out", **own)
    assert len(read_jsonl(tmp_path / "out" / "fund" / "rl" / "bench_dev.jsonl")) == 3  # what was there stays


@pytest.mark.parametrize("more", [{}, {"thought": "The balance is enough, so pay."}, {"thought": "Ann waits, therefore pay.", "plan": ["pay Ann"]}])
def test_gold_proves_own_requests(tmp_path, chat, more):
    """Whatever thought they have, or none: gold once fell short of full reward for a thought without a logic word, and its format was faulty
    without one."""
    line = {"request": "Pay 70 to Ann", "action": {"tool": "transfer_funds", "params": {"amount": 70, "to": "Ann"}}, "split": "dev"} | more
    (tmp_path / "own.jsonl").write_text(json.dumps(line) + "\n")
    fund.prepare_bench(SimpleNamespace(requests=tmp_path / "own.jsonl", output=tmp_path / "out"))
    row = read_jsonl(tmp_path / "out" / "fund" / "rl" / "bench_dev.jsonl")[0]
    trajectory = play(chat, row, gold(row))
    assert trajectory.reward >= fund.full_reward(row) == pytest.approx(0.7)
    report = fund.metrics([row], [trajectory])
    assert report["baselines"]["gold"]["accuracy"] == 1.0 and report["format_rate"] == 1.0


# ---------------------------------------------------------------------------------------------------------------------
# through the real rollout


def play(chat, row, script):
    sampler = script if hasattr(script, "sample") else ScriptedSampler(chat, script)
    return asyncio.run(rollout(fund, row, chat, sampler, SamplingParams(max_tokens=2000), max_turns=8, max_seq_len=16000))


def gold(row):
    return [action.text for _, action in fund.gold(row)]


CASES = [("ground-truth", "react"), ("rules", "react"), ("rules-full-tool", "react"), ("ground-truth", "tool-only")]


@pytest.mark.parametrize("mode, form", CASES)
def test_gold_earns_exactly_the_maximum_on_every_row(chat, data, mode, form, tmp_path):
    rows = data if form == "react" else prepare(tmp_path, form=form)
    for row in rows["bench_rl_train"] + rows["bench_dev"] + rows["bench_test"]:
        row = row | {"reward_mode": mode, "misuse_penalty": 0.3}
        trajectory = play(chat, row, gold(row))
        assert trajectory.finish_reason == "answer" and trajectory.format_ok, trajectory.error
        assert trajectory.reward == pytest.approx(fund.full_reward(row), abs=1e-9), (row["request"], trajectory.parts)
        assert trajectory.parts["correct"] == trajectory.parts["params_right"] == 1
        assert fund.predict(trajectory) == row["label"] and len(trajectory.turns) == len(row.get("path") or [0])


def a_request(data, steps=2):
    return next(row for row in data["bench_dev"] if row["kind"] == "request" and len(row["path"]) == steps)


def test_a_request_is_run_on_its_account(chat, data):
    row = a_request(data, 3)
    trajectory = play(chat, row, gold(row))
    for turn, step in zip(trajectory.turns, row["path"]):
        assert turn.observation.role == "user" and step["result"] in turn.observation.text
    assert fund.replay(row, trajectory)[1] == row["end"]
    again = trajectory_from_json(json.loads(json.dumps(trajectory_to_json(trajectory, "."))), ".")
    assert fund.reward(row, again) == (trajectory.reward, trajectory.parts)


def test_a_request_that_stops_early_or_goes_too_far_has_not_succeeded(chat, data):
    row = a_request(data, 2)
    first, second = gold(row)
    early = play(chat, row, [json.dumps(json.loads(first) | {"plan": ["only this"]})])
    assert early.finish_reason == "answer" and early.parts["correct"] == 0 and early.reward == pytest.approx(0.5)
    other_way = [json.dumps(json.loads(second) | {"plan": ["this", "that"]}), json.dumps(json.loads(first) | {"plan": ["that"]})]
    swapped = play(chat, row, other_way)
    assert swapped.parts["correct"] == 0
    pay = json.dumps(GOOD | {"action": act("withdraw_funds", amount=1), "plan": ["last"]})
    more = play(chat, row, [first, json.dumps(json.loads(second) | {"plan": ["this", "pay"]}), pay])
    assert more.parts["correct"] == 0 and more.reward < 1
    look = json.dumps(GOOD | {"action": act("check_balance"), "plan": ["look", "go on"]})
    assert play(chat, row, [look, first, second]).parts["correct"] == 1  # a look does no harm, but it costs reward
    assert play(chat, row, [look, first, second]).reward < 1


def test_P11_endless_requests_end_and_nothing_malformed_is_run(chat, data):
    row = a_request(data, 2)
    trajectory = play(chat, row, ['{"thought": "go on"}'] * 20)
    assert trajectory.finish_reason == "answer" and len(trajectory.turns) == fund.MAX_STEPS and trajectory.reward == 0
    assert "Step 1: nothing -> Error: lacks: no action" in trajectory.turns[0].observation.text
    half = play(chat, row, ['{"thought": "go on", "action": {"tool": "withdraw_funds", "params": {"amount": "all"}}, "plan": ["now"]}'])
    assert fund.replay(row, half)[0] == [] and "Error: params: " in half.turns[0].observation.text


@pytest.mark.parametrize("text, reason", [("Let me think.", "invalid_action"), ("{broken}", "answer"), ("<tool_call>{}</tool_call>", None)])
def test_what_is_no_reply_earns_nothing_and_is_wrong(chat, data, text, reason):
    row = next(row for row in data["bench_dev"] if row["kind"] == "single")
    trajectory = play(chat, row, [text] * 8)
    assert reason in (None, trajectory.finish_reason) and trajectory.reward == 0 and trajectory.parts["correct"] == 0
    report = fund.metrics([row], [trajectory])
    assert report["format_rate"] == 0 and sum(report["faults"].values()) == len(trajectory.turns)


def test_P41_failed_trajectories_abstain(chat, data):
    row = data["bench_dev"][0]
    trajectory = play(chat, row, [RuntimeError("gone")])
    assert trajectory.finish_reason == "error" and fund.reward(row, trajectory) == (None, {})


def test_metrics(chat, data):
    rows = data["bench_dev"]
    report = fund.metrics(rows, [play(chat, row, gold(row)) for row in rows])
    assert report["accuracy"] == report["format_rate"] == report["params_accuracy"]["value"] == report["reasoning"]["value"] == 1
    assert report["requests"]["whole"] == {"value": 1.0, "low": pytest.approx(0.722, abs=1e-3), "high": 1.0, "n": 10}  # Wilson, 10 of 10
    assert set(report["categories"]) == {"simple", "domain", "intraday", "combination", "multi"}
    assert set(report["kinds"]) == {"single", "multi"}
    assert report["ambiguous"]["label"]["value"] == 1 and report["faults"] == {}
    assert all(set(line) == {tool} for tool, line in report["confusion"].items())

    always = [play(chat, row, [fund.closing(row["task"], "check_balance")[1].text]) for row in rows]
    report = fund.metrics(rows, always)
    assert report["accuracy"] == pytest.approx(report["baselines"]["always_check_balance"]["accuracy"])
    assert report["requests"]["whole"]["value"] == 0
    assert all(set(line) == {"check_balance"} for line in report["confusion"].values())

    unsure = [row for row in rows if row["ambiguous"]]
    withdraw = [play(chat, row, [json.dumps(GOOD | {"action": act("withdraw_funds", amount=1), "plan": ["x"]})]) for row in unsure]
    report = fund.metrics(unsure, withdraw)
    assert report["ambiguous"]["label"]["value"] == 0 and report["ambiguous"]["accepted"]["value"] == 1 and "accuracy" not in report


def test_scripted_policies_play_through_policies_py(chat, data):
    import numpy as np

    row = a_request(data, 2)
    assert play(chat, row, ScriptedPolicy(chat, fund.gold(row), fund, row)).reward == pytest.approx(1)
    random = play(chat, row, ScriptedPolicy(chat, fund.random_play(row, ".", np.random.default_rng(0)), fund, row))
    assert random.finish_reason == "answer" and random.reward < 1
