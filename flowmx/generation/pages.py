"""Pages of a paged cache: allocation, reference counts, shared prefixes. This module does no I/O.

A cache has pages of a few tokens. A sequence has a table of pages, in the order of its tokens. Pages are shared: a full
page is published under a digest of its tokens and of all tokens before them, and a sequence that begins with the same
tokens refers to the same page. A page that several sequences refer to is never written; a sequence that has to write
into one gets a copy (copy on write).

A published page without references stays until its memory is needed; the least recently used one is evicted first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from flowmx.errors import MXNetError

__all__ = ["OutOfPages", "PageCopy", "PagePool", "PageTable", "pages_within"]

_START = b""
"""The digest before the first token."""


class OutOfPages(MXNetError, MemoryError):
    """All pages of the cache are in use."""


class PageCopy(NamedTuple):
    """A copy that must be made before the next step: the content of a page to another page."""

    source: int
    target: int


def pages_within(max_bytes: int, page_bytes: int) -> int:
    """Return the number of pages that fit into a number of bytes.

    Raises:
        ValueError: not even one page fits.
    """
    if max_bytes < page_bytes:
        raise ValueError(f"max_bytes={max_bytes} is less than one page of the cache: pass at least {page_bytes}")
    return max_bytes // page_bytes


class PagePool:
    """The pages of a cache and their owners.

    Args:
        count: the number of pages.
        page_size: the number of tokens in a page.

    Raises:
        ValueError: an argument is not positive.
    """

    def __init__(self, count: int, page_size: int) -> None:
        if count < 1 or page_size < 1:
            raise ValueError(f"expected at least one page of at least one token, got {count} pages of {page_size}")
        self.count, self.page_size = count, page_size
        self._references = [0] * count
        self._free = list(range(count - 1, -1, -1))
        self._digests: dict[int, bytes] = {}
        self._published: dict[bytes, int] = {}
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._root = _START

    @property
    def available(self) -> int:
        """The number of pages that can be allocated."""
        return len(self._free) + len(self._evictable)

    @property
    def used(self) -> int:
        """The number of pages that sequences refer to."""
        return self.count - self.available

    @property
    def published(self) -> int:
        """The number of pages whose content can be shared."""
        return len(self._published)

    @property
    def root(self) -> bytes:
        """The digest before the first token of a sequence."""
        return self._root

    def references(self, page: int) -> int:
        """Return the number of references to a page."""
        return self._references[page]

    def allocate(self) -> int:
        """Return a page with one reference, which may evict an unreferenced published page.

        Raises:
            OutOfPages: sequences refer to all pages.
        """
        if self._free:
            page = self._free.pop()
        elif self._evictable:
            page, _ = self._evictable.popitem(last=False)
            self._unpublish(page)
        else:
            raise OutOfPages(f"all {self.count} pages of the cache are in use")
        self._references[page] = 1
        return page

    def retain(self, page: int) -> None:
        """Add a reference to a page that is referenced or published."""
        if not self._references[page] and page not in self._digests:
            raise ValueError(f"page {page} is free: allocate it")
        self._evictable.pop(page, None)
        self._references[page] += 1

    def release(self, page: int) -> None:
        """Remove a reference from a page.

        Raises:
            ValueError: the page has none.
        """
        if not self._references[page]:
            raise ValueError(f"page {page} has no references: it was released twice")
        self._references[page] -= 1
        if self._references[page]:
            return
        if page in self._digests:
            self._evictable[page] = None
        else:
            self._free.append(page)

    def find(self, digest: bytes) -> int | None:
        """Return the page that is published under a digest, with one more reference, or None."""
        page = self._published.get(digest)
        if page is not None:
            self.retain(page)
        return page

    def publish(self, page: int, digest: bytes) -> None:
        """Offer a full page to other sequences; do nothing if its content is published already."""
        if digest not in self._published and page not in self._digests:
            self._published[digest] = page
            self._digests[page] = digest

    def forget(self, root: bytes = _START) -> None:
        """Unpublish all pages, because their content is obsolete.

        Args:
            root: the digest before the first token from now on, such as the version of the weights. Sequences that
                began with a different one publish no pages.
        """
        self._root = root
        for page in list(self._digests):
            self._unpublish(page)
        self._free += reversed(self._evictable)
        self._evictable.clear()

    def _unpublish(self, page: int) -> None:
        del self._published[self._digests.pop(page)]


class PageTable:
    """The pages of one sequence.

    Args:
        pool: the pages of the cache.
        salt: sequences share pages only with those of the same salt.

    Attributes:
        pages: the pages, in the order of the tokens.
        length: the number of tokens whose keys and values are in the cache.
    """

    def __init__(self, pool: PagePool, salt: bytes = b"") -> None:
        self.pool, self.salt = pool, salt
        self.pages: list[int] = []
        self.length = 0
        self._root = self._present_root()
        self._digests: list[bytes] = []

    def share_prefix(self, tokens: Sequence[int]) -> int:
        """Refer to the published pages with which a text begins; return the number of its tokens that need no step.

        At least one token remains, because its logits are needed.

        Args:
            tokens: the whole text; the table is empty.
        """
        if self.pages:
            raise ValueError("only an empty table can share a prefix: clear it first")
        self._root = self._present_root()
        for digest in self._chain(tokens, (len(tokens) - 1) // self.pool.page_size):
            page = self.pool.find(digest)
            if page is None:
                break
            self.pages.append(page)
            self._digests.append(digest)
        self.length = len(self.pages) * self.pool.page_size
        return self.length

    def missing(self, length: int) -> int:
        """Return the number of pages that :meth:`reserve` would allocate."""
        new = max(0, self._pages_for(length) - len(self.pages))
        return new + len(self._shared_places(length))

    def reserve(self, length: int) -> list[PageCopy]:
        """Make the places from ``self.length`` to ``length`` writable; return the copies to make first.

        Raises:
            OutOfPages: too few pages are available; nothing has changed.
        """
        missing = self.missing(length)
        if missing > self.pool.available:
            raise OutOfPages(
                f"{missing} pages are needed and {self.pool.available} of {self.pool.count} pages are available"
            )
        copies = [self._copy(place) for place in self._shared_places(length)]
        while len(self.pages) < self._pages_for(length):
            self.pages.append(self.pool.allocate())
        return copies

    def advance(self, tokens: Sequence[int], length: int) -> None:
        """Record that the first ``length`` tokens are in the cache, and publish the pages that are now full.

        Args:
            tokens: the tokens of the sequence, at least ``length``.
            length: at most the length that is reserved.
        """
        self.length = length
        if self._root != self._present_root():
            return
        full = length // self.pool.page_size
        for place, digest in enumerate(self._chain(tokens, full, len(self._digests)), len(self._digests)):
            self._digests.append(digest)
            self.pool.publish(self.pages[place], digest)

    def fork(self) -> PageTable:
        """Return a table of a second sequence with the same tokens, which shares all pages."""
        other = PageTable(self.pool, self.salt)
        other.pages, other.length = list(self.pages), self.length
        other._root, other._digests = self._root, list(self._digests)
        for page in self.pages:
            self.pool.retain(page)
        return other

    def clear(self) -> None:
        """Release all pages. The last page is released first, so that beginnings stay published for longest."""
        for page in reversed(self.pages):
            self.pool.release(page)
        self.pages, self._digests, self.length = [], [], 0
        self._root = self._present_root()

    def _present_root(self) -> bytes:
        return self.pool.root + self.salt

    def _pages_for(self, length: int) -> int:
        return -(-length // self.pool.page_size)

    def _shared_places(self, length: int) -> list[int]:
        """Return the places in the table of pages that will be written and are shared."""
        if length <= self.length:
            return []
        first, end = self.length // self.pool.page_size, min(self._pages_for(length), len(self.pages))
        return [place for place in range(first, end) if self.pool.references(self.pages[place]) > 1]

    def _copy(self, place: int) -> PageCopy:
        source = self.pages[place]
        self.pages[place] = target = self.pool.allocate()
        self.pool.release(source)
        del self._digests[place:]
        return PageCopy(source, target)

    def _chain(self, tokens: Sequence[int], stop: int, start: int = 0) -> Iterator[bytes]:
        """Iterate over the digests of the pages ``start:stop``."""
        size = self.pool.page_size
        digest = self._digests[start - 1] if start else self._root
        for page in range(start, stop):
            content = np.asarray(tokens[page * size : (page + 1) * size], np.int64).tobytes()
            digest = blake2b(digest + content, digest_size=16).digest()
            yield digest
