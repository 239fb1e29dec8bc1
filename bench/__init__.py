"""Measurements of minfer and its peers, not part of the package.

Each runs from the repository's root, as `python -m bench.NAME`.
"""
