"""A page on the graph at work, served on this machine: live from a model, or from a saved trace."""

from minfer.viz.feed import Feed
from minfer.viz.live import LiveModel
from minfer.viz.saved import SavedTrace, comparison
from minfer.viz.server import Source, VizServer

__all__ = ["Feed", "LiveModel", "SavedTrace", "Source", "VizServer", "comparison"]
