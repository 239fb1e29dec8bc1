"""The slow, obvious backend that judges the others: NumPy, one function an op."""

from minfer.backends.reference import ops
from minfer.backends.reference.backend import ReferenceBackend
from minfer.settings import Settings


def create(settings: Settings) -> ReferenceBackend:
    """Make the reference backend; no setting changes it."""
    return ReferenceBackend()


__all__ = ["ReferenceBackend", "create", "ops"]
