"""Automatic prefix caching: prompts that begin alike are computed once and held once.

As vLLM does it, in blocks of BLOCK tokens. A prompt hits the full blocks at its beginning that are there, but
never its last token, since somebody has to compute what comes after it. What it computes is there for the
next one from the step on in which its prompt ends. A block that no sequence holds any more stays until its
room is needed: it counts as free, and the least recently used one goes first, of one prompt the last block.

A trace tells the blocks of prompts only, so answers are not kept, and what a trace names nothing of shares
nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile

from llamaserver.simulate.engine import Engine
from llamaserver.simulate.sequence import Sequence

BLOCK = 512
"""Tokens that one of `Request.hash_ids` stands for, as in Mooncake's traces."""

Ids = tuple[int, ...]


class PrefixCache:
    """Which blocks are there. An id stands for a block and all before it, so who holds one holds these."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        """How many sequences hold a block."""
        self.free: OrderedDict[int, None] = OrderedDict()
        """Blocks that nobody holds, the least recently used one first."""

    def __len__(self) -> int:
        return len(self.held) + len(self.free)

    def __contains__(self, block: int) -> bool:
        return block in self.held or block in self.free

    def found(self, ids: Ids) -> int:
        """How many blocks at the beginning of a prompt are there."""
        return sum(1 for _ in takewhile(self.__contains__, ids))

    def shared(self, ids: Ids) -> int:
        """How many of these blocks somebody holds."""
        return sum(block in self.held for block in ids)

    def hold(self, ids: Ids, hits: int) -> int:
        """Holds the first `hits` blocks, which are there, and then makes those that are not. Returns how many
        it holds.

        A block that is there and was no hit is the last one of a prompt, which is computed anew: that copy is
        the prompt's own, and nobody else finds it.
        """
        for block in ids[:hits]:
            self.free.pop(block, None)
            self.held[block] = self.held.get(block, 0) + 1
        made = tuple(takewhile(lambda block: block not in self, ids[hits:]))
        self.held.update(dict.fromkeys(made, 1))
        return hits + len(made)

    def release(self, ids: Ids, computed: int) -> None:
        """Lets blocks go. Of those that nobody else holds the first `computed` stay; the others were never
        written.
        """
        for i in range(len(ids) - 1, -1, -1):
            block = ids[i]
            others = self.held.pop(block) - 1
            if others:
                self.held[block] = others
            elif i < computed:
                self.free[block] = None

    def shrink(self, tokens: int) -> None:
        """Evicts until the blocks that nobody holds have at most so many tokens."""
        while self.free and len(self.free) * BLOCK > tokens:
            self.free.popitem(last=False)


class CachingEngine(Engine):
    """An engine with a prefix cache.

    `kv` stays the sum of all contexts, since attention reads a shared prefix once for each sequence. `saved`
    is what of it is there once for several of them: `used` is `kv` without it.
    """

    def reset(self) -> None:
        super().reset()
        self.prefixes = PrefixCache()
        self.holds: dict[Sequence, int] = {}
        """Of each running sequence the blocks that it holds."""
        self.hit: dict[Sequence, int] = {}
        """Tokens that a sequence found when it was first admitted, until its first token tells of them."""

    def _hits(self, s: Sequence) -> Ids:
        ids = s.hash_ids[: (s.to_prefill - 1) // BLOCK]
        return ids[: self.prefixes.found(ids)]

    def _needs(self, s: Sequence) -> int:
        return s.to_prefill - BLOCK * self.prefixes.shared(self._hits(s))

    def _admit(self, s: Sequence) -> None:
        hits = self._hits(s)
        if not s.admitted:
            # vLLM counts no lookup of a request that was preempted.
            self.hit[s] = BLOCK * len(hits)
            self.prefix_queries += s.prompt
            self.prefix_hits += BLOCK * len(hits)
        super()._admit(s)
        self.saved += BLOCK * self.prefixes.shared(hits)
        # Nobody is admitted before this prompt is through: its blocks may be named before they are written.
        self.holds[s] = self.prefixes.hold(s.hash_ids, len(hits))
        s.prefilled = BLOCK * len(hits)
        self.kv += s.prefilled

    def _schedule(self) -> tuple[list[tuple[Sequence, int]], int]:
        chunks, prefill = super()._schedule()
        self.prefixes.shrink(self.profile.kv_tokens - self.used - self.decoding - prefill)
        return chunks, prefill

    def _first_token(self, s: Sequence) -> None:
        self.cached_prompt_tokens += self.hit.pop(s, 0)
        super()._first_token(s)

    def _preempt(self, victim: Sequence) -> None:
        self._let_go(victim)
        super()._preempt(victim)

    def _finish(self, s: Sequence) -> None:
        self._let_go(s)
        super()._finish(s)

    def _let_go(self, s: Sequence) -> None:
        ids = s.hash_ids[: self.holds.pop(s)]
        self.prefixes.release(ids, s.prefilled // BLOCK)
        self.saved -= BLOCK * self.prefixes.shared(ids)
