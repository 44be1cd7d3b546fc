"""Tags that a model writes inside its turn to call something, and what stands behind them: what the inline tools share.

    <calc>12*7</calc><result>84</result>        calculator.py
    <ask>...</ask><reply>...</reply>            expert.py
    <guess>50</guess><obs>higher</obs>          tasks/guess.py

The sampler stops at a closing tag, the episode's `inline(text)` gives the text that is put behind it, and the same turn goes on
(seed 004, section 3.8). What is put in is context and never trained. A model that writes the opening tag of a result itself
is stopped there (the episode's `forbidden`) and pays `FABRICATION`.

In an SFT row the injected texts of an assistant message stand in its `inline` list, in order, as in `Turn.inline` of a rollout.
"""

FABRICATION = 0.2  # subtracted for a result that the model made up (seed 004, section 3.8)


def last_call(text, names):
    """(name, body) of the call that was closed last, or None. A closing tag without an opening one has the body ""."""
    ends = {name: text.rfind(f"</{name}>") for name in names}
    name = max(ends, key=ends.get)
    if ends[name] < 0:
        return None
    head = text[: ends[name]]
    body = head[head.rfind(f"<{name}>") + len(name) + 2 :] if f"<{name}>" in head else ""
    return name, "" if f"</{name}>" in body else body.strip()


def fabricated(trajectory):
    """Whether the model wrote an observation itself: `rollout` stops there and says so in the last turn's action."""
    action = trajectory.turns[-1].action if trajectory.turns else None
    return bool(action and action.error.startswith("fabricated observation"))


def whole_text(trajectory):
    """Everything that the model wrote, with the injected results in their places."""
    return "\n".join(turn.text for turn in trajectory.turns)


def pieces(text, inline):
    """What the model itself writes of a turn, cut at the injected texts: n + 1 pieces for n results, as a sampler would give them."""
    out = []
    for result in inline:
        head, found, text = text.partition(result)
        if not found:
            raise ValueError(f"the injected text {result[:60]!r} is not in the turn, or not in this order")
        out.append(head)
    return [*out, text] if text else out


def without_inline(text, spans, messages):
    """The spans (start, end) of a rendered conversation that the model writes, without what was injected into its turns: that is context.

    One span for each assistant message; the injected texts are its `inline`. SystemExit if they are not there, or there are other spans.
    """
    said, out = [message.get("inline") or [] for message in messages if message.get("role") == "assistant"], []
    if not any(said):
        return spans
    if len(said) != len(spans):
        raise SystemExit(f"{len(said)} assistant messages, {len(spans)} spans: inline results need a template that marks each turn once")
    for (start, end), results in zip(spans, said):
        for result in results:
            at = text.find(result, start, end)
            if at < 0:
                raise SystemExit(f"the inline result {result[:60]!r} is not in its message, or not in this order")
            out, start = [*out, (start, at)], at + len(result)
        out.append((start, end))
    return [span for span in out if span[0] < span[1]]
