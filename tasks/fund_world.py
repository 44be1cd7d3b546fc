"""The account behind the fund assistant's tools: cash, holdings, orders, a clock, a market calendar (seed 003, sections 2.2 and 7).

    account = open_account(state)                  # `state`: the plain dict that rows carry
    text, ok = run_tool(account, "transfer_funds", {"amount": 100000, "to": "ACC205"})

Rules: the market is open from 09:30 to 15:00 on weekdays that are no holidays; orders outside are refused. A sale is paid on the next
trading day (T+1), so over a weekend on Monday; until then the cash is not there. Nothing may be overdrawn. A refused call changes nothing.
Money in whole units; the clock stands still while a request runs, unless `advance` moves it.
"""

import copy
import math
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta

OPEN, CLOSE = time(9, 30), time(15, 0)
HOLIDAYS = frozenset(date.fromisoformat(day) for day in ("2026-01-01", "2026-04-03", "2026-05-01", "2026-12-25"))
SHOWN = 5  # entries of a history


class Refused(Exception):
    """The tool's own words for why it did nothing."""


@dataclass
class Account:
    """One customer. `pending`: sales that are not paid yet, [{day, account, amount}]; `history`: what happened, oldest first."""

    now: datetime
    main: str  # the account meant when none is named
    cash: dict  # {account: amount}
    holdings: dict = field(default_factory=dict)  # {symbol: {quantity, cost (a share)}}
    prices: dict = field(default_factory=dict)  # {symbol: price}
    pending: list = field(default_factory=list)
    history: list = field(default_factory=list)  # [{day, symbol or None, text}]


def open_account(state):
    """An account of its own, so that the same row can be run many times."""
    state = copy.deepcopy(state)
    try:
        account = Account(datetime.fromisoformat(state.pop("now")), **state)
    except (KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"state of a row is broken ({error}): it needs now (ISO time), main and cash, see Account") from None
    settle(account)
    return account


def snapshot(account):
    """What a request is judged by: money and shares, not the words of the history."""
    held = {symbol: item["quantity"] for symbol, item in account.holdings.items() if item["quantity"]}
    return {"cash": dict(account.cash), "holdings": held, "pending": sorted([p["day"], p["account"], p["amount"]] for p in account.pending)}


# ---------------------------------------------------------------- calendar


def is_trading_day(day):
    return day.weekday() < 5 and day not in HOLIDAYS


def next_trading_day(day):
    """The first trading day after `day`: T+1."""
    day += timedelta(days=1)
    while not is_trading_day(day):
        day += timedelta(days=1)
    return day


def is_open(now):
    return is_trading_day(now.date()) and OPEN <= now.time() < CLOSE


def next_opening(now):
    day = now.date() if is_trading_day(now.date()) and now.time() < OPEN else next_trading_day(now.date())
    return datetime.combine(day, OPEN)


def advance(account, now):
    """Move the clock forward and pay what has become due."""
    if now < account.now:
        raise ValueError(f"the clock can't go back from {account.now} to {now}")
    account.now = now
    settle(account)


def settle(account):
    today = account.now.date().isoformat()
    for sale in [sale for sale in account.pending if sale["day"] <= today]:
        account.cash[sale["account"]] += sale["amount"]
        account.pending.remove(sale)


# ---------------------------------------------------------------- tools


def run_tool(account, tool, params):
    """(what the tool says, whether it did it). Parameters of the wrong kind are refused like everything else."""
    if tool not in RUN:
        return f"Error: there is no tool {str(tool)[:40]!r}.", False
    try:
        return RUN[tool](account, **params), True
    except Refused as refusal:
        return f"Error: {refusal}.", False
    except TypeError:
        return f"Error: {tool} does not take the parameters {', '.join(map(str, params)) or '(none)'}.", False


def check_balance(account, account_id=None):
    name = _known(account, account_id)
    waiting = [sale for sale in account.pending if sale["account"] == name]
    text = f"{name}: {account.cash[name]} available"
    text += "".join(f", {sale['amount']} arriving on {sale['day']}" for sale in waiting)
    shares = sorted((symbol, item["quantity"]) for symbol, item in account.holdings.items() if item["quantity"])
    held = [f"{symbol} {quantity} ({gain(account, symbol):+.1f} %)" for symbol, quantity in shares]
    return text + (f"; holdings: {', '.join(held)}" if held else "")


def gain(account, symbol):
    """Profit of a holding in percent."""
    item = account.holdings[symbol]
    return 100 * (account.prices[symbol] / item["cost"] - 1)


def transfer_funds(account, amount, to):
    amount, name = _amount(amount), account.main
    if not isinstance(to, str) or not to.strip():
        raise Refused("nobody is named to receive it")
    if to == name:
        raise Refused(f"{to} is the account that pays")
    _take(account, name, amount)
    if to in account.cash:
        account.cash[to] += amount
    return _note(account, None, f"{amount} transferred from {name} to {to}")


def withdraw_funds(account, amount, account_id=None):
    amount, name = _amount(amount), _known(account, account_id)
    _take(account, name, amount)
    return _note(account, None, f"{amount} withdrawn from {name}")


def place_order(account, side, symbol, quantity):
    quantity = _amount(quantity)
    if not isinstance(symbol, str) or symbol not in account.prices:
        raise Refused(f"{symbol} is not traded here")
    if side not in ("buy", "sell"):
        raise Refused(f"side must be buy or sell, not {side}")
    if not is_open(account.now):
        raise Refused(f"the market is closed, it opens on {next_opening(account.now):%Y-%m-%d %H:%M}")
    price = account.prices[symbol]
    item = account.holdings.get(symbol, {"quantity": 0, "cost": price})
    if side == "buy":
        _take(account, account.main, price * quantity)
        total = item["quantity"] + quantity
        account.holdings[symbol] = {"quantity": total, "cost": (item["cost"] * item["quantity"] + price * quantity) / total}
        return _note(account, symbol, f"bought {quantity} {symbol} at {price}")
    if quantity > item["quantity"]:
        raise Refused(f"only {item['quantity']} {symbol} held, {quantity} asked for")
    item["quantity"] -= quantity
    day = next_trading_day(account.now.date()).isoformat()
    account.pending.append({"day": day, "account": account.main, "amount": price * quantity})
    return _note(account, symbol, f"sold {quantity} {symbol} at {price}, paid on {day}")


def get_transaction_history(account, symbol=None):
    found = [entry for entry in account.history if symbol in (None, entry["symbol"])]
    return "; ".join(f"{entry['day']} {entry['text']}" for entry in found[-SHOWN:]) or f"no transactions{f' in {symbol}' if symbol else ''}"


def check_market_status(account):
    if is_open(account.now):
        return f"open until {CLOSE:%H:%M}"
    return f"closed, opens on {next_opening(account.now):%Y-%m-%d %H:%M}"


RUN = {
    "check_balance": lambda state, account=None: check_balance(state, account),
    "transfer_funds": transfer_funds,
    "withdraw_funds": lambda state, amount, account=None: withdraw_funds(state, amount, account),
    "place_order": place_order,
    "get_transaction_history": get_transaction_history,
    "check_market_status": check_market_status,
}


def _amount(value):
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0 and value == int(value)
    if not good:
        raise Refused(f"{str(value)[:40]} is not a positive whole number")
    return int(value)


def _known(account, name):
    name = account.main if name is None else name
    if not isinstance(name, str) or name not in account.cash:
        raise Refused(f"there is no account {str(name)[:40]}")
    return name


def _take(account, name, amount):
    if amount > account.cash[name]:
        raise Refused(f"insufficient balance, {account.cash[name]} available and {amount} needed")
    account.cash[name] -= amount


def _note(account, symbol, text):
    account.history.append({"day": account.now.date().isoformat(), "symbol": symbol, "text": text})
    return text
