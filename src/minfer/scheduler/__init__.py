"""Graph -> plan -> run. The passes, the plan they fill, and the runner that executes it."""

from minfer.scheduler.allocate import Live, Resident, place, residents
from minfer.scheduler.plan import Copy, Device, Plan, Segment
from minfer.scheduler.planner import make_plan, passes
from minfer.scheduler.runner import CompiledPlan, Started, load_weights

__all__ = [
    "CompiledPlan",
    "Copy",
    "Device",
    "Live",
    "Plan",
    "Resident",
    "Segment",
    "Started",
    "load_weights",
    "make_plan",
    "passes",
    "place",
    "residents",
]
