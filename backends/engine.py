"""The batched sampler of the local backend: many concurrent callers, one worker thread that owns the model.

    sampler = await create_sampler("models/tiny-vlm")      # backends/local.py; or trainer.sampler(), on the trainer's weights
    samples = await sampler.sample(chunks, 8, SamplingParams(max_tokens=64, seed=1))      # call it from as many tasks as you like
    logprobs = await sampler.logprobs(chunks)              # float32 [T]: log p(token t | all before), 0 at t = 0 and at pictures

How it works. `Engine` repeats: take what arrived, prefill it as a batch, one decoding step (or a burst of some) for all rows, let go what
ended. What an ended sequence leaves behind serves its next turn, or a copy of it: a prompt that extends it prefills only the rest. New
weights empty that store. The trainer's work goes through the same thread in the same order (`run`): it waits for the sequences under way,
and requests that come after it see its result. So weights never change under a sequence.

Two ways to decode. A GPU and a decoder of the Llama / Qwen shape: static slots and CUDA graphs (decode.py). Anything else: `Rows` and
transformers' own forward. Both draw the same tokens for a request (draw.py): sample i has its own generator, made of (seed, i), which gives
one number for each token, whatever else is in the batch.

Not done: prefill in pieces; attention in both directions inside a picture (it is run causally).
"""

from __future__ import annotations

import asyncio
import atexit
import math
import queue
import sys
import threading
import time
import weakref
from collections import OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np
import torch

from backends.decode import BURST, LONG, STOPS, make_slots
from backends.draw import draw
from backends.model import Flat, Model, micro_batches
from backends.rows import Rows, layer_kinds
from protocol import Sample, SamplingParams

_engines = weakref.WeakSet()


# ---------------------------------------------------------------------------------------------------------------------
# the engine


def check_request(n: int, params: SamplingParams, tokenizer):
    """ValueError if n samples can't be drawn with these parameters."""
    if n < 1 or params.max_tokens < 1:
        raise ValueError(f"n and max_tokens must be at least 1, not {n} and {params.max_tokens}")
    if not (params.temperature >= 0 and 0 < params.top_p <= 1 and params.top_k >= -1):
        got = f"{params.temperature}, {params.top_p} and {params.top_k}"
        raise ValueError(f"temperature must be >= 0, top_p in (0, 1] and top_k >= -1 (0 and -1 mean off), not {got}")
    if params.stop_strings and (tokenizer is None or not all(params.stop_strings)):
        raise ValueError("stop strings must not be empty, and need a model with a tokenizer")


@dataclass(eq=False)
class Request:
    """Something that a caller waits for: n samples of a prompt, the log-probabilities of a sequence, or a job of the trainer."""

    kind: str  # "sample", "logprobs" or "job"
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future
    chunks: list = ()
    n: int = 0
    params: SamplingParams | None = None
    job: object = None
    flat: Flat | None = None
    samples: dict = field(default_factory=dict)  # number of the sample -> Sample
    begun: int = 0  # samples given a slot so far, with static slots
    now: range = range(0)  # samples to begin in the next prefill
    cancelled: bool = False

    def finish(self, value=None, error=None):
        def settle():
            if not self.future.done():
                self.future.set_result(value) if error is None else self.future.set_exception(error)

        self.cancelled = True  # nothing more to do for it
        try:
            self.loop.call_soon_threadsafe(settle)
        except RuntimeError:  # the caller's event loop has been closed meanwhile
            pass


@dataclass(eq=False)
class Sequence:
    """One sample under way. Its row holds the prompt and all tokens but the last."""

    request: Request
    number: int
    random: np.random.Generator
    limit: int  # most tokens
    position: int  # rotary position of the next token
    tokens: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)

    @property
    def length(self):
        return len(self.request.flat) + len(self.tokens) - 1


class Engine:
    """A sampler; see the top of this file. `close()` ends what is pending with an error; it is called at exit, too.

    max_rows: sequences decoded together (more wait their turn; without slots one request may exceed it). cache_tokens: positions remembered
    of ended sequences. prefill_positions: padded size of a prefill batch. fused: the fast path of decode.py, for models that it knows
    (None: on a GPU). memory_share: of the GPU's free memory, for its keys and values.
    """

    def __init__(self, model: Model, tokenizer=None, max_rows=256, cache_tokens=65536, prefill_positions=8192, fused=None, memory_share=0.4):
        # A tool that draws or renders holds Python's lock for 5 ms at a time by default, and the worker asks for it many times a step
        sys.setswitchinterval(min(sys.getswitchinterval(), 5e-4))
        self.model, self.tokenizer = model, tokenizer
        self.max_rows, self.cache_tokens, self.prefill_positions = max_rows, cache_tokens, prefill_positions
        self.mixed = "linear" in layer_kinds(model)  # their state would take in the padding of a prefill
        self.slots = make_slots(model, max_rows, memory_share) if (model.device.type == "cuda" if fused is None else fused) else None
        self.rows: Rows | None = None
        self.active: list[Sequence | None] = []  # by row
        self.past: OrderedDict = OrderedDict()  # key of a sequence (bytes) -> (length, state), least recently used first
        self.waiting: deque[Request] = deque()
        self.steps_waited = 0
        self.pieces = {}  # token -> its text alone
        self.counts = {"prefilled": 0, "reused": 0, "steps": 0, "sampled": 0}  # positions, positions, steps, tokens
        self.inbox = queue.SimpleQueue()
        self.lock, self.closed = threading.Lock(), False
        self.thread = threading.Thread(target=self._loop, name="sampler", daemon=True)
        self.thread.start()
        _engines.add(self)

    @property
    def version(self) -> int:
        return self.model.version

    # ------------------------------------------------------------------ for callers

    async def sample(self, chunks: list, n: int, params: SamplingParams) -> list[Sample]:
        """n samples of a prompt. ValueError if prompt or parameters are unusable, FloatingPointError if the model's logits aren't finite.

        Generation also ends, with reason "length", where the model can't read further (max_position_embeddings).
        """
        check_request(n, params, self.tokenizer)
        return await self._ask(kind="sample", chunks=list(chunks), n=n, params=params)

    async def logprobs(self, chunks: list) -> np.ndarray:
        """Teacher-forced, at temperature 1, float32 [T]: element t is log p(token t | all before it); 0 at t = 0 and at pictures."""
        return await self._ask(kind="logprobs", chunks=list(chunks))

    async def run(self, job):
        """Result of job(), called in the thread that owns the model, after all that was asked before and before all that is asked later."""
        return await self._ask(kind="job", job=job)

    async def _ask(self, **what):
        loop = asyncio.get_running_loop()
        request = Request(loop=loop, future=loop.create_future(), **what)
        with self.lock:
            if self.closed:
                raise RuntimeError("the sampler is closed")
            self.inbox.put(request)
        try:
            return await request.future
        except asyncio.CancelledError:
            request.cancelled = True  # the worker frees its rows at the next step
            raise

    def weights_changed(self):
        """For the trainer, inside a job."""
        self.model.weights_changed()
        if self.slots:
            self.slots.weights_changed()
        self.past.clear()

    def close(self, timeout: float = 5.0):
        with self.lock:
            if not self.closed:
                self.closed = True
                self.inbox.put(None)
        if threading.current_thread() is not self.thread:
            self.thread.join(timeout)

    # ------------------------------------------------------------------ the worker

    def _loop(self):
        if self.model.device.type == "cuda":
            torch.cuda.set_device(self.model.device)  # a thread of its own has its own current device
        with torch.no_grad():
            while not self.closed:
                try:
                    self._receive()
                    self._turn()
                except BaseException as error:  # a bug, or out of memory: all who wait hear of it, the next request finds a clean slate
                    self._fail_all(error)
        while not self.inbox.empty():
            self.waiting.append(self.inbox.get())
        self._fail_all(RuntimeError("the sampler was closed"))

    def _receive(self):
        """Takes what arrived. With nothing to do it waits, and then a little more, since callers come in crowds."""
        idle = not self.waiting and not any(self.active)
        until = None
        while True:
            try:
                request = self.inbox.get(timeout=0.001) if until else self.inbox.get(block=idle)
            except queue.Empty:
                break
            if request is None:
                break
            self.waiting.append(request)
            if idle and self.waiting[0].kind == "job":
                break
            if idle and until is None:
                until = time.monotonic() + 0.01
            if until and time.monotonic() > until:
                break

    def _turn(self):
        for row, sequence in enumerate(self.active):
            if sequence and sequence.request.cancelled:
                self.active[row] = None
        self.waiting = deque(request for request in self.waiting if not request.cancelled)
        busy = sum(sequence is not None for sequence in self.active)
        if self.waiting and self.waiting[0].kind == "job":
            if not busy:
                self._run_job(self.waiting.popleft())
        elif self.waiting:
            # A prefill holds up all rows, so a few late-comers wait for each other, up to 4 steps.
            self.steps_waited += 1 if self.slots is None else 3  # bursts
            ready = sum(r.n - r.begun for r in self.waiting)
            ready = min(ready, self.slots.rows - busy) if self.slots else ready
            if not busy or ready * 8 >= busy or self.steps_waited > 4:
                self.steps_waited = 0
                self._admit(busy)
        if any(self.active):
            self._step()

    def _run_job(self, request):
        if self.model.device.type != "cpu" and self.slots is None:
            self.rows, self.active = None, []  # the trainer needs the space
        try:
            with torch.enable_grad():
                request.finish(request.job())
        except BaseException as error:
            request.finish(error=error)

    def _fail_all(self, error):
        for request in {s.request for s in self.active if s} | {r for r in self.waiting if r}:
            request.finish(error=error)
        self.active, self.rows = [], None
        if self.slots:
            self.slots.drop()
        self.waiting.clear()
        self.past.clear()

    # ------------------------------------------------------------------ prefill

    def _admit(self, busy: int):
        """Starts waiting requests, in order, up to the next job."""
        fresh, scores = [], []
        while self.waiting and self.waiting[0].kind != "job" and (self.slots or not (busy and busy + self.waiting[0].n > self.max_rows)):
            request = self.waiting.popleft()
            try:
                request.flat = request.flat or self.model.flatten(request.chunks)
                if request.kind == "sample" and len(request.flat) == self.model.max_positions:
                    raise ValueError(f"a prompt of {len(request.flat)} positions (max_position_embeddings) leaves no room for an answer")
                room = not self.slots or request.kind != "sample" or self.slots.room(len(request.flat) + self._limit(request), busy)
            except BaseException as error:
                request.finish(error=error)
                continue
            if request.kind != "sample":
                scores.append(request)
                continue
            end = min(request.n, request.begun + self.slots.rows - busy) if self.slots else request.n
            request.now, request.begun = range(request.begun, end if room else request.begun), end if room else request.begun
            busy += len(request.now)
            if request.now:
                fresh.append(request)
            if request.begun < request.n:  # the rest gets the next slots that are free
                self.waiting.appendleft(request)
                break
        for group in self.model.batches([len(r.flat) for r in scores], self.prefill_positions):
            self._guarded(self._score, [scores[i] for i in group])
        prompts = OrderedDict()  # equal prompts, asked for one by one, are read once
        for request in fresh:
            prompts.setdefault(request.flat.key.tobytes(), []).append(request)
        for group in self._prefill_groups(list(prompts.values())):
            self._guarded(self._prefill, group, [request for requests, _, _ in group for request in requests])

    def _guarded(self, function, argument, requests=None):
        """Trouble with one batch is told to those who are in it; the others go on."""
        try:
            function(argument)
        except Exception as error:
            for request in requests or argument:
                request.finish(error=error)

    def _score(self, requests):
        flats = [request.flat for request in requests]
        targets = [np.append(flat.ids[1:], 0) for flat in flats]
        wanted = [np.append(flat.key[1:] >= 0, False) for flat in flats]
        logp = self.model.score(flats, targets, wanted)[0].cpu().numpy()
        for request, want in zip(requests, wanted):
            result = np.zeros(len(want), dtype=np.float32)
            result[1:][want[:-1]], logp = logp[: want.sum()], logp[want.sum() :]
            request.finish(result)

    def _recall(self, flat: Flat):
        """(length, state) of the longest remembered sequence that this one extends; (0, None) if there is none."""
        whole = flat.key.tobytes()
        key = max((key for key in self.past if len(key) < len(whole) and whole.startswith(key)), key=len, default=None)
        if key is None:
            return 0, None
        self.past.move_to_end(key)
        return self.past[key]

    def _prefill_groups(self, prompts: list) -> list:
        """Batches of (requests of one prompt, positions remembered, their state).

        What is new is padded on the right. The states of linear attention would take the padding in: such models get equal lengths.
        """
        jobs = [(requests, *self._recall(requests[0].flat)) for requests in prompts]
        pools = {}
        for job in jobs:
            pools.setdefault(len(job[0][0].flat) - job[1] if self.mixed else 0, []).append(job)
        groups = []
        for pool in pools.values():
            sizes = [len(requests[0].flat) for requests, _, _ in pool]
            groups += [[pool[i] for i in group] for group in micro_batches(sizes, self.prefill_positions)]
        return groups

    def _limit(self, request) -> int:
        return min(request.params.max_tokens, self.model.max_positions - len(request.flat))

    def _prefill(self, group):
        if self.slots:
            return self._prefill_slots(group)
        flats = [requests[0].flat for requests, _, _ in group]
        rows, last = self._read_prompts(group)
        begun, sources = self._begin(group, last)
        for i, sequence in zip(sources, begun):
            self._place(sequence, rows.read(i, len(flats[i])))

    def _read_prompts(self, group):
        """Prefills a group. Returns its rows and the last hidden states [prompts, width]."""
        model, size = self.model, len(group)
        flats, starts = [requests[0].flat for requests, _, _ in group], [start for _, start, _ in group]
        counts = [len(flat) - start for flat, start in zip(flats, starts)]
        count, width = max(counts), max(starts) + max(counts)
        rows = Rows(model, size, width)
        ids, positions = torch.full((size, count), model.pad), torch.zeros(model.axes, size, count, dtype=torch.long)
        for i, (flat, (_, start, state)) in enumerate(zip(flats, group)):
            if state is not None:
                rows.write(i, list(zip(*state[0])) if self.slots else state, start)  # slots keep all layers in one tensor
            ids[i, : counts[i]] = torch.from_numpy(flat.ids[start:])
            positions[:, i, : counts[i]] = flat.positions[:, start:]
        pictures = [chunk for flat, start in zip(flats, starts) for place, chunk in flat.pictures if place >= start]
        mask = rows.begin(torch.tensor(starts, device=model.device), count, width, fresh=not any(starts))
        hidden = model.hidden(ids.to(model.device), positions.to(model.device), pictures, mask, rows.cache)  # [B, count, width]
        return rows, hidden[range(size), [n - 1 for n in counts]]  # [B, width]

    def _begin(self, group, last):
        """The sequences of a group of prompts with their first tokens, and the number of the prompt that each has. last [prompts, width]."""
        begun, sources = [], []
        for i, (requests, start, _) in enumerate(group):
            flat = requests[0].flat
            self.counts["prefilled"] += len(flat) - start
            self.counts["reused"] += start
            for request in requests:
                for number in request.now:
                    random = generator(request.params.seed, number)
                    begun.append(Sequence(request, number, random, self._limit(request), int(flat.positions.max())))
                    sources.append(i)
        self._extend(begun, self.model.logits(last)[sources])
        return begun, sources

    def _prefill_slots(self, group):
        """The same with static slots. Prompts go into free ones, where a sequence of theirs stays; its other samples get copies."""
        model, slots = self.model, self.slots
        slots.refresh()
        free = [row for row in range(slots.rows) if row >= len(self.active) or self.active[row] is None]
        flats, starts, home = [requests[0].flat for requests, _, _ in group], [start for _, start, _ in group], free[: len(group)]
        if any(place >= start for flat, start in zip(flats, starts) for place, _ in flat.pictures):  # through the tower
            rows, last = self._read_prompts(group)
            slots.take(rows, torch.tensor(home, device=model.device), max(map(len, flats)))
        else:
            for slot, (_, start, state) in zip(home, group):
                if state is not None:
                    slots.write(slot, state, start)
            new = [np.arange(start, len(flat)) for flat, start in zip(flats, starts)]
            whole = np.stack([
                np.concatenate([flat.ids[start:] for flat, start in zip(flats, starts)]),
                np.concatenate([np.full(len(places), slot) for places, slot in zip(new, home)]),
                np.concatenate(new),
                np.concatenate([flat.positions[0, start:].numpy() for flat, start in zip(flats, starts)]),
            ])  # int64 [4, N]: ids, slots, places, rotary positions, packed
            hidden = slots.prefill(torch.from_numpy(whole), max(map(len, flats)))
            last = hidden[np.cumsum([len(places) for places in new]) - 1]
        begun, sources = self._begin(group, last)
        for i, (requests, _, _) in enumerate(group):
            length = len(flats[i]) - 1  # one less: the last is read again, for its logits
            if length and any(request.begun < request.n for request in requests):  # more samples are to come
                self._keep(flats[i].key[:length].tobytes(), length, slots.read(home[i], length))
        taken, copies, placed = set(), ([], []), []
        spare = iter(free[len(group) :])
        for i, sequence in zip(sources, begun):
            reason = self._ended(sequence)
            if sequence.request.cancelled or reason:
                self._remember(sequence, slots.read(home[i], len(flats[i])))
                self._let_go(sequence, reason)
                continue
            slot = home[i] if i not in taken else next(spare)
            if i in taken:
                copies[0].append(home[i])
                copies[1].append(slot)
            taken.add(i)
            self.active += [None] * (slot + 1 - len(self.active))
            self.active[slot] = sequence
            placed.append((slot, sequence))
        slots.copy(*copies, max(map(len, flats)))
        if placed:
            slots.begin(*map(list, zip(*placed)))

    def _place(self, sequence, state):
        """Gives a sequence that has its first token a row, or lets it go if that was its last."""
        reason = self._ended(sequence)
        if sequence.request.cancelled or reason:
            self._remember(sequence, state)
            return self._let_go(sequence, reason)
        row = self.active.index(None) if None in self.active else len(self.active)
        if row == len(self.active):
            self.active.append(None)
        need = sequence.length + 2
        if self.rows is None:
            self.rows = Rows(self.model, 8, 64 * (need // 64 + 2))
        if row >= self.rows.rows or need > self.rows.capacity:
            grown = self.rows.rows if row < self.rows.rows else max(row + 1, 2 * self.rows.rows)
            self.rows.resize(grown, max(self.rows.capacity, 64 * (need // 64 + 2)))
        self.rows.write(row, state, len(sequence.request.flat))
        self.active[row] = sequence

    # ------------------------------------------------------------------ decoding

    def _step(self):
        """One more token for every active row. Rows in between that are free take part with a dummy, since a batch is the first rows."""
        self._close_gaps()
        if self.slots:
            return self._burst()
        model, active = self.model, self.active
        lengths = [sequence.length if sequence else 0 for sequence in active]
        width = 8 * (max(lengths) // 8 + 1)  # positions seen, with the new one
        if width > self.rows.capacity:
            self.rows.resize(self.rows.rows, 64 * (width // 64 + 4))
        ids = torch.tensor([[sequence.tokens[-1] if sequence else model.pad] for sequence in active], device=model.device)  # [B, 1]
        positions = torch.tensor([sequence.position if sequence else 0 for sequence in active], device=model.device)  # [B]
        mask = self.rows.begin(torch.tensor(lengths, device=model.device), 1, width)
        hidden = model.hidden(ids, positions.view(1, -1, 1).expand(model.axes, -1, 1), mask=mask, cache=self.rows.cache)  # [B, 1, width]
        taken = [row for row, sequence in enumerate(active) if sequence]
        self._extend([active[row] for row in taken], model.logits(hidden[:, -1])[taken])
        self.counts["steps"] += 1
        for row in taken:
            sequence = active[row]
            reason = self._ended(sequence)
            if sequence.request.cancelled:  # failed or given up
                self.rows.clean(row)
                active[row] = None
            elif reason:
                self._remember(sequence, self.rows.read(row, sequence.length))
                active[row] = None
                self._let_go(sequence, reason)

    def _burst(self):
        """Some tokens for every active slot. The device sees to stop tokens; what a sequence drew after a stop string is thrown away."""
        active, params = self.active, [sequence.request.params for sequence in self.active if sequence]
        steps = min(BURST if self.waiting else LONG, max(sequence.limit - len(sequence.tokens) for sequence in active if sequence))
        temperatures = {p.temperature for p in params}
        needs = (any(p.top_k > 0 or p.top_p < 1 for p in params), 0 in temperatures, not temperatures <= {0, 1})
        width = max(sequence.length for sequence in active if sequence) + steps
        self.slots.refresh()
        tokens, logprobs, made = self.slots.burst([sequence is not None for sequence in active], steps, needs, width)
        self.counts["steps"] += steps
        for row, sequence in enumerate(active):
            if sequence is None:
                continue
            p, count, reason = sequence.request.params, made[row], ""
            if p.stop_strings or len(p.stop_tokens) > STOPS:
                for count in range(1, made[row] + 1):
                    sequence.tokens.append(tokens[row][count - 1])
                    if reason := self._ended(sequence):
                        break
            else:
                sequence.tokens += tokens[row][:count]
                reason = self._ended(sequence)
            sequence.logprobs += logprobs[row][:count]
            sequence.position += count
            self.counts["sampled"] += count
            self._check_finite(sequence, count)
            if sequence.request.cancelled:
                self.slots.clean(row)
                active[row] = None
            elif reason:
                self._remember(sequence, self.slots.read(row, sequence.length))
                active[row] = None
                self._let_go(sequence, reason)

    def _close_gaps(self):
        """Moves the last rows into free ones when more than a third of the batch would be dummies."""
        active, moves, width = self.active, ([], []), 0
        while active and active[-1] is None:
            active.pop()
        while active.count(None) > max(2, len(active) // 3) or moves[0] and None in active:
            sequence, free = active.pop(), active.index(None)
            if self.slots:
                moves[0].append(len(active))
                moves[1].append(free)
                width = max(width, sequence.length)
            else:
                self.rows.write(free, self.rows.read(len(active), sequence.length), sequence.length)
            active[free] = sequence
            while active and active[-1] is None:
                active.pop()
        if self.slots:
            self.slots.copy(*moves, width, state=True)

    def _extend(self, sequences, logits):
        """Draws the next token of each sequence from its logits [B, V]."""
        params = [sequence.request.params for sequence in sequences]
        values = [[p.temperature for p in params], [p.top_p for p in params], [sequence.random.random() for sequence in sequences]]
        temperature, top_p, uniform = torch.tensor(values, dtype=torch.float64).to(logits.device)  # each [B]
        top_k = torch.tensor([p.top_k for p in params], device=logits.device)
        tokens, logprobs = draw(logits, temperature.float(), top_k, top_p, uniform)
        tokens, logprobs = tokens.tolist(), logprobs.tolist()
        self.counts["sampled"] += len(tokens)
        for sequence, token, logprob in zip(sequences, tokens, logprobs):
            sequence.tokens.append(token)
            sequence.logprobs.append(logprob)
            sequence.position += 1
            self._check_finite(sequence, 1)

    def _check_finite(self, sequence, count):
        """Of its last `count` log-probabilities."""
        if count and not math.isfinite(sum(sequence.logprobs[-count:])):
            first = next(i for i, logprob in enumerate(sequence.logprobs) if not math.isfinite(logprob))
            where = f"token {first + 1} of sample {sequence.number}"
            error = FloatingPointError(f"the model's logits are not finite at {where}: are its weights still finite?")
            sequence.request.finish(error=error)

    def _ended(self, sequence) -> str:
        """Why a sequence is over: "stop", "stop_string", "length", or "" if it isn't."""
        params, token = sequence.request.params, sequence.tokens[-1]
        if token in params.stop_tokens:
            return "stop"
        if params.stop_strings and self._stop_string(sequence.tokens, params.stop_strings):
            return "stop_string"
        return "length" if len(sequence.tokens) >= sequence.limit else ""

    def _stop_string(self, tokens, strings) -> bool:
        """Whether the last token completes one of the strings. Decoding is slow: it waits for a token with a string's last letter."""
        last = tokens[-1]
        if last not in self.pieces:
            self.pieces[last] = self.tokenizer.decode([last], skip_special_tokens=False)
        for string in strings:
            end = string[-1]
            if end in self.pieces[last] or end.isspace() or not end.isascii():  # a letter of several bytes may come as several tokens
                # A token may be one byte of a letter, so this many hold the string. An older one can't be there: we would have stopped
                tail = self.tokenizer.decode(tokens[-4 * len(string) - 4 :], skip_special_tokens=False)
                if string in tail:
                    return True
        return False

    def _let_go(self, sequence, reason):
        request = sequence.request
        request.samples[sequence.number] = Sample(sequence.tokens, sequence.logprobs, reason)
        if len(request.samples) == request.n and not request.cancelled:
            request.finish([request.samples[i] for i in range(request.n)])

    def _remember(self, sequence, state):
        """Keeps what a sequence has read, for prompts that go on from there. Its last token was never read, so it isn't part of it."""
        key = np.append(sequence.request.flat.key, sequence.tokens[:-1]).astype(np.int64).tobytes()
        if not sequence.request.cancelled:
            self._keep(key, sequence.length, state)

    def _keep(self, key: bytes, length: int, state):
        if key in self.past or length > self.cache_tokens:
            return
        self.past[key] = (length, [tuple(tensor.clone() for tensor in pair) for pair in state])
        total = sum(length for length, _ in self.past.values())
        while total > self.cache_tokens:
            total -= self.past.popitem(last=False)[1][0]


def generator(seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng([seed % 2**64, number])


@atexit.register
def _close_all():
    for engine in list(_engines):
        engine.close(timeout=2)
