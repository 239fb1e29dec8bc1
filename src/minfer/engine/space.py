"""The room sequences live in: slots and pages, given out, shared, copied and taken back.

Every change of who holds which page is made here, so that a page is never lost: whatever fails,
a sequence either has what it asked for or nothing new. Who must wait is the engine's decision.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from minfer.engine.pages import PagePool, Prefix, PrefixCache
from minfer.engine.sequence import Sequence as Run
from minfer.graph import PAGE

CopyPage = Callable[[int, int], None]


class KVSpace:
    """Slots of the page table, and the pages of the KV cache.

    Args:
        n_pages: pages in all.
        n_slots: sequences that may be here at the same time.
        keep_prefixes: whether pages are kept for later requests with the same beginning.
        copy_page: called as `copy_page(source, target)`, ordered with the work on them.

    Attributes:
        n_left: how often pages came back: while it stays the same, what was refused is refused.
    """

    def __init__(
        self, n_pages: int, n_slots: int, *, keep_prefixes: bool, copy_page: CopyPage
    ) -> None:
        self.pool = PagePool(n_pages)
        self.cache = PrefixCache(self.pool)
        self.n_left = 0
        self._slots = list(range(n_slots - 1, -1, -1))
        self._keep_prefixes = keep_prefixes
        self._copy_page = copy_page

    @property
    def has_slot(self) -> bool:
        """Whether one more sequence may be here."""
        return bool(self._slots)

    def enter(self, run: Run) -> bool:
        """Give `run` a slot and pages for all of its tokens and one more, known ones filled.

        Returns:
            False if there are not enough; nothing has changed then.
        """
        if not self._slots:
            return False
        known = self._find(run)
        run.pages.extend(known.pages)
        for page in known.pages:
            self.pool.share(page)
        tail = known.tail
        if tail is not None:
            self.pool.share(tail)
        try:
            if not self.grow(run, len(run.tokens) + 1):
                if tail is None:
                    return False
                # the page to copy from may be the very one that is missing
                self.pool.drop(tail)
                tail = None
                if not self.grow(run, len(run.tokens) + 1):
                    return False
            if tail is not None:
                self._copy_page(tail, run.pages[len(known.pages)])
            run.n_computed = len(known.pages) * PAGE + (known.n_tail if tail is not None else 0)
            run.slot = self._slots.pop()
            return True
        finally:
            if tail is not None:
                self.pool.drop(tail)
            if run.slot < 0:
                self._drop_pages(run)

    def enter_alone(self, run: Run) -> bool:
        """`enter` without looking for known pages, and without room for one more token."""
        if not self._slots or not self.grow(run, len(run.tokens)):
            return False
        run.slot = self._slots.pop()
        return True

    def grow(self, run: Run, n_tokens: int) -> bool:
        """See that the first `n_tokens` of `run` have cells; False, and no change, if they can't.

        Pages that only the prefix cache holds are given up for it, least recently used first.
        """
        n_pages = run.pages_needed(n_tokens)
        if not self.make_room(n_pages):
            return False
        run.pages.extend(self.pool.take() for _ in range(n_pages))
        return True

    def make_room(self, n_pages: int) -> bool:
        """Free pages until `n_pages` are free; False, and no change, if they can't be."""
        missing = n_pages - self.pool.n_free
        if missing > 0:
            if missing > self.cache.n_reclaimable():
                return False
            self.cache.evict(missing)
        return True

    def remember(self, run: Run, n_tokens: int) -> None:
        """Offer the pages of the first `n_tokens` of `run` to later requests."""
        if self._keep_prefixes:
            n_exact = 0 if run.reuse_decoded else run.n_prompt
            self.cache.add(run.tokens[:n_tokens], run.pages, n_exact)

    def leave(self, run: Run) -> None:
        """Take back the slot and the pages of `run`."""
        self._drop_pages(run)
        self._slots.append(run.slot)
        run.slot = -1
        self.n_left += 1

    def put(self, tokens: Sequence[int], write: Callable[[int, int], None]) -> bool:
        """Put pages that hold `tokens` into the prefix cache.

        Args:
            write: called as `write(index, page)` to fill each.

        Returns:
            False if they do not fit.
        """
        n_pages = -(-len(tokens) // PAGE)
        if not self.make_room(n_pages):
            return False
        pages = [self.pool.take() for _ in range(n_pages)]
        try:
            for index, page in enumerate(pages):
                write(index, page)
            self.cache.add(tokens, pages, 0)
        finally:
            for page in pages:
                self.pool.drop(page)
        return True

    def forget(self) -> None:
        """Give up all that only the prefix cache holds, and every known beginning."""
        self.cache.clear()
        self.n_left += 1

    def _find(self, run: Run) -> Prefix:
        if not self._keep_prefixes:
            return Prefix()
        return self.cache.find(run.tokens[: run.n_prompt], exact_only=not run.reuse_decoded)

    def _drop_pages(self, run: Run) -> None:
        for page in run.pages:
            self.pool.drop(page)
        run.pages = array("i")
