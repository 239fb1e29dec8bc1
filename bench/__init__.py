"""Measurements of minfer and its peers; not part of the package. Run from the repository's root."""
