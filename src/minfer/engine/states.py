"""Keys and values where they live: one state a layer, in the backend that runs the layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from minfer.backends import Backend
from minfer.errors import RequestError
from minfer.scheduler import Plan


class KVStates:
    """The KV states a plan uses, created where its nodes run.

    Attributes:
        nbytes: memory they take.
    """

    def __init__(self, plan: Plan) -> None:
        self.nbytes = 0
        self._states: dict[str, Backend] = {}
        self._backends = {name: plan.backend(name) for name in plan.used}
        for node in plan.graph.nodes:
            name = getattr(node.attrs, "state", None)
            if name is not None and name not in self._states:
                backend = plan.backend(plan.backend_of[node.id])
                self.nbytes += backend.add_state(plan.graph.states[name])
                self._states[name] = backend

    def describe(self) -> dict[str, str]:
        """For each backend, its device."""
        return {name: backend.describe() for name, backend in self._backends.items()}

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page of every state, ordered with the work on them."""
        for backend in self._backends.values():
            backend.copy_pages([(source, target)])

    def read(self, pages: Sequence[int]) -> dict[str, list[bytes]]:
        """The bytes of pages, by state."""
        return {
            state: [backend.read_page(state, page) for page in pages]
            for state, backend in self._states.items()
        }

    def writer(
        self, contents: Mapping[str, Sequence[bytes]], n_pages: int
    ) -> Callable[[int, int], None]:
        """What writes the n-th of saved pages into a page.

        Raises:
            RequestError: if they are not pages of these states.
        """
        if set(contents) != set(self._states) or any(len(c) != n_pages for c in contents.values()):
            raise RequestError("the saved pages belong to another model", where="session")

        def write(index: int, page: int) -> None:
            for state, backend in self._states.items():
                backend.write_page(state, page, contents[state][index])

        return write
