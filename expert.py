"""Ask an expert: `<ask>question</ask>` is followed by `<reply>text</reply>` in the same turn, at most three times, 0.05 each (seed 004,
3.10).

    python expert.py http://localhost:8000/v1 MODEL "Make 24 from 3, 5, 7 and 9."      # one question to an endpoint, through the cache

Two experts. `remote_reply` asks any OpenAI-compatible server at temperature 0 and keeps every reply on disk: the same question to the same
model is asked once, and a run can be repeated without the server. `program_reply` needs no server: it is handed a right and a wrong
reply and gives the wrong one to a fixed share of the questions, always the same ones for the same seed.

The key of a server is read from the environment variable TOOLGRAD_EXPERT_KEY, if it is set; it is neither cached nor printed.
"""

import contextlib
import hashlib
import json
import os
import sys
import threading
from pathlib import Path

from inline import last_call

MAX_ASKS = 3  # in one answer
PRICE = 0.05  # of each, subtracted from the reward
MAX_QUESTION = 2000  # characters
MAX_REPLY = 600  # characters of a reply that the model gets to see
STOP = "</ask>"
FORBIDDEN = "<reply>"


def draw(*where):
    """A number in [0, 1) that depends on the arguments alone."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, where)).encode("utf-8", "surrogatepass")).digest()[:6], "big") / 2**48


def program_reply(right, wrong, share, seed, *where):
    """`wrong` for `share` (0 to 1) of all places `where` (row id, number of the question), `right` for the others."""
    if not 0 <= share <= 1:
        raise SystemExit(f"share of wrong replies {share!r}: a number from 0 to 1")
    return wrong if draw(seed, "expert", *where) < share else right


def cache_path(folder, base_url, model, question, system):
    """The file of one reply: a name for everything that decides it."""
    key = hashlib.sha256(json.dumps([base_url, model, system, question], ensure_ascii=True).encode()).hexdigest()
    return Path(folder) / key[:2] / f"{key[2:34]}.json"


def remote_reply(question, base_url, model, cache, system="Answer as briefly as you can.", timeout=60.0):
    """The endpoint's reply, from the cache if it is there.

    Raises RuntimeError (an error of the tool, never a wrong answer) if none comes.
    """
    path = cache_path(cache, base_url, model, question, system)
    with contextlib.suppress(OSError, ValueError, KeyError):  # a damaged file is asked again
        return json.loads(path.read_text(encoding="utf-8"))["reply"]
    reply = post(base_url, model, [{"role": "system", "content": system}, {"role": "user", "content": question}], timeout)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_text(json.dumps({"model": model, "question": question, "reply": reply}, ensure_ascii=True), encoding="utf-8")
    os.replace(temporary, path)
    return reply


def post(base_url, model, messages, timeout):
    """One chat completion at temperature 0: the text. Two more tries where the server is busy or the line is cut."""
    import time
    import urllib.error
    import urllib.request

    headers = {"Content-Type": "application/json"}
    if os.environ.get("TOOLGRAD_EXPERT_KEY"):
        headers["Authorization"] = f"Bearer {os.environ['TOOLGRAD_EXPERT_KEY']}"
    body = json.dumps({"model": model, "messages": messages, "temperature": 0, "max_tokens": 2048}).encode()
    url = f"{base_url.rstrip('/')}/chat/completions"
    for attempt in range(3):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=timeout) as answer:
                text = json.loads(answer.read())["choices"][0]["message"]["content"]
            return (text or "").strip()
        except urllib.error.HTTPError as error:
            reason, again = f"HTTP {error.code}", error.code == 429 or error.code >= 500
        except (OSError, ValueError) as error:
            reason, again = str(getattr(error, "reason", error)), True
        except (KeyError, IndexError, TypeError, AttributeError):
            reason, again = "the answer is no chat completion", False
        if not again:
            break
        time.sleep(0.5 * 2**attempt if attempt < 2 else 0)
    raise RuntimeError(f"expert {url}: {reason}")


def inline_reply(text, asks, reply):
    """What is put behind the question that ends `text`. `asks`: how many there were before; `reply(question, number)`: the expert."""
    _, question = last_call(text, ["ask"])
    if asks >= MAX_ASKS:
        return f"<reply>error: only {MAX_ASKS} questions</reply>"
    if not question or len(question) > MAX_QUESTION:
        return f"<reply>error: a question of 1 to {MAX_QUESTION} characters</reply>"
    answer = " ".join(str(reply(question, asks)).split())[:MAX_REPLY]
    for tag in ("reply", "ask", "calc", "result", "answer", "think"):  # a reply can't forge what only the turn itself may say
        answer = answer.replace(f"<{tag}>", f"({tag})").replace(f"</{tag}>", f"(/{tag})")
    return f"<reply>{answer}</reply>"


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python expert.py BASE_URL MODEL QUESTION")
    try:
        print(remote_reply(sys.argv[3], sys.argv[1], sys.argv[2], Path("outputs") / "expert-cache"))
    except RuntimeError as problem:
        sys.exit(str(problem))
