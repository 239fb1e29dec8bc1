"""Who owns which page of the KV cache: reference counts, and the tree of reusable prefixes.

Pages are numbers here; where they live is the backends' affair. A page holds `PAGE` consecutive
positions of one sequence. A page that is shared is never written: a sequence that must go on
inside one gets a copy.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from minfer.graph import PAGE


class PagePool:
    """Free pages and reference counts of the others."""

    def __init__(self, n_pages: int) -> None:
        self.n_pages = n_pages
        self._free = list(range(n_pages - 1, -1, -1))
        self._counts = [0] * n_pages

    @property
    def n_free(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    @property
    def n_shared(self) -> int:
        """Pages with more than one holder."""
        return sum(count > 1 for count in self._counts)

    def take(self) -> int:
        """A free page with one reference; there must be one."""
        page = self._free.pop()
        self._counts[page] = 1
        return page

    def share(self, page: int) -> None:
        """Add a reference."""
        assert self._counts[page] > 0, f"page {page} is free"
        self._counts[page] += 1

    def drop(self, page: int) -> None:
        """Give a reference back; the last one frees the page."""
        assert self._counts[page] > 0, f"page {page} is free"
        self._counts[page] -= 1
        if not self._counts[page]:
            self._free.append(page)

    def references(self, page: int) -> int:
        """How many hold `page`."""
        return self._counts[page]


@dataclass
class _Node:
    """One page of a known prefix. `tokens` may be fewer than PAGE: then it is a leaf.

    The first `n_exact` of them are prompt tokens; see `PrefixCache`.
    """

    tokens: tuple[int, ...]
    page: int
    parent: _Node | None
    n_exact: int
    used: int = 0
    children: dict[int, list[_Node]] = field(default_factory=dict)

    def each_child(self) -> Iterator[_Node]:
        return itertools.chain.from_iterable(self.children.values())


@dataclass(frozen=True, slots=True)
class Prefix:
    """What is known of a prompt: whole pages to share, and a page to copy the rest from.

    Attributes:
        pages: pages that hold the first `len(pages) * PAGE` tokens.
        tail: a page whose first `n_tail` cells hold the tokens after them, or None.
    """

    pages: tuple[int, ...] = ()
    tail: int | None = None
    n_tail: int = 0

    @property
    def n_tokens(self) -> int:
        """Tokens that need no computing."""
        return len(self.pages) * PAGE + self.n_tail


class PrefixCache:
    """A tree of pages by the tokens they hold; least recently used leaves are given up first.

    Keys and values of prompt tokens are exact: the many-rows path computes them alike whatever
    the request, so sharing them never changes a result. Those of generated tokens were computed
    one row at a time: they are offered only to requests that accept the difference in rounding.
    """

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._root = _Node((), -1, None, 0)
        self._clock = itertools.count(1)
        self._n_nodes = 0

    def __len__(self) -> int:
        return self._n_nodes

    def find(self, tokens: Sequence[int], *, exact_only: bool) -> Prefix:
        """The longest known prefix of `tokens` that leaves at least one token to compute."""
        limit = len(tokens) - 1
        node = self._root
        pages: list[int] = []
        now = next(self._clock)
        while True:
            at = len(pages) * PAGE
            best, length = self._best_child(node, tokens, at, limit - at, exact_only)
            if best is None:
                return Prefix(tuple(pages))
            best.used = now
            if length < PAGE:
                return Prefix(tuple(pages), best.page, length)
            pages.append(best.page)
            node = best

    def _best_child(
        self, node: _Node, tokens: Sequence[int], at: int, limit: int, exact_only: bool
    ) -> tuple[_Node | None, int]:
        best, length = None, 0
        if limit <= 0:
            return None, 0
        wanted = tuple(tokens[at : at + min(limit, PAGE)])
        for child in node.children.get(wanted[0], ()):
            usable = child.n_exact if exact_only else PAGE
            common = min(_common(child.tokens, wanted), usable)
            if common > length:
                best, length = child, common
        return best, length

    def add(self, tokens: Sequence[int], pages: Sequence[int], n_exact: int) -> None:
        """Remember the pages that hold `tokens`; the first `n_exact` tokens are prompt tokens.

        The cache takes its own reference to pages it did not know.
        """
        node = self._root
        now = next(self._clock)
        for index, page in enumerate(pages):
            part = tuple(tokens[index * PAGE : (index + 1) * PAGE])
            if not part:
                return
            exact = max(0, min(n_exact - index * PAGE, len(part)))
            node.used = now
            known = self._known(node, part, exact)
            if known is None:
                for shorter in self._superseded(node, part, exact):
                    self._remove(shorter)
                known = _Node(part, page, node, exact, now)
                node.children.setdefault(part[0], []).append(known)
                self._pool.share(page)
                self._n_nodes += 1
            node = known
            node.used = now
            if len(part) < PAGE:
                return

    def _known(self, node: _Node, part: tuple[int, ...], n_exact: int) -> _Node | None:
        """A child that already serves everything `part` would."""
        for child in node.children.get(part[0], ()):
            if child.tokens[: len(part)] == part and child.n_exact >= n_exact:
                return child
        return None

    def _superseded(self, node: _Node, part: tuple[int, ...], n_exact: int) -> list[_Node]:
        """Children that serve nothing that `part` would not."""
        return [
            child
            for child in node.children.get(part[0], ())
            if len(child.tokens) < len(part)
            and part[: len(child.tokens)] == child.tokens
            and child.n_exact <= n_exact
        ]

    def evict(self, n_pages: int) -> int:
        """Give up `n_pages` of those only the cache holds, least recently used leaves first.

        Returns:
            How many were given up: fewer if there are no more.
        """
        number = itertools.count()
        leaves = [
            (node.used, next(number), node)
            for node in self._nodes()
            if not node.children and self._pool.references(node.page) == 1
        ]
        heapq.heapify(leaves)
        for count in range(n_pages):
            if not leaves:
                return count
            _, _, node = heapq.heappop(leaves)
            self._remove(node)
            parent = node.parent
            assert parent is not None
            is_leaf = parent is not self._root and not parent.children
            if is_leaf and self._pool.references(parent.page) == 1:
                heapq.heappush(leaves, (parent.used, next(number), parent))
        return n_pages

    def clear(self) -> None:
        """Forget everything."""
        for node in self._nodes():
            self._pool.drop(node.page)
        self._root.children.clear()
        self._n_nodes = 0

    def n_reclaimable(self) -> int:
        """Pages that evicting can free: only the cache holds them and all that follow them."""
        held: set[int] = set()
        count = 0
        for node in reversed(self._nodes()):
            if id(node) in held or self._pool.references(node.page) > 1:
                held.add(id(node.parent))
            else:
                count += 1
        return count

    def _nodes(self) -> list[_Node]:
        """Every node but the root, parents first."""
        found: list[_Node] = []
        stack = [self._root]
        while stack:
            children = list(stack.pop().each_child())
            found += children
            stack += children
        return found

    def _remove(self, node: _Node) -> None:
        assert node.parent is not None
        siblings = node.parent.children[node.tokens[0]]
        siblings.remove(node)
        if not siblings:
            del node.parent.children[node.tokens[0]]
        self._pool.drop(node.page)
        self._n_nodes -= 1


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """How many leading items are equal."""
    if a == b:  # the usual case, quickly
        return len(a)
    unequal = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(unequal, min(len(a), len(b)))
