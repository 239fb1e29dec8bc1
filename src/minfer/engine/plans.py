"""Plans by step shape: built at the first step of a shape, kept while recently used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from minfer.backends import Weight
from minfer.models import DecoderConfig, StepShape, build_decoder
from minfer.scheduler import CompiledPlan, Device, Plan, load_weights, make_plan
from minfer.settings import Settings

KEPT = 48


class PlanCache:
    """Compiled plans, least recently used dropped first."""

    def __init__(
        self,
        config: DecoderConfig,
        devices: Sequence[Device],
        weights: Mapping[str, Weight],
        settings: Settings,
    ) -> None:
        self._config = config
        self._devices = tuple(devices)
        self._weights = weights
        self._settings = settings
        self._compiled: OrderedDict[StepShape, CompiledPlan] = OrderedDict()
        self._node_by_node = False

    @property
    def node_by_node(self) -> bool:
        """Whether plans are compiled with a step for every node, to be looked into."""
        return self._node_by_node

    @node_by_node.setter
    def node_by_node(self, wanted: bool) -> None:
        if wanted != self._node_by_node:
            self._node_by_node = wanted
            self._compiled.clear()

    def plan(self, shape: StepShape) -> Plan:
        """Plan a shape without compiling it."""
        return make_plan(build_decoder(self._config, shape), self._devices, self._settings)

    def get(self, shape: StepShape) -> CompiledPlan:
        """The compiled plan of a shape; compiled again where an arena has moved."""
        found = self._compiled.get(shape)
        if found is None or not found.is_current():
            plan = self.plan(shape) if found is None else found.plan
            load_weights(plan, self._weights)
            found = CompiledPlan(plan, node_by_node=self._node_by_node)
            self._compiled[shape] = found
        self._compiled.move_to_end(shape)
        while len(self._compiled) > KEPT:
            self._compiled.popitem(last=False)
        return found

    def clear(self) -> None:
        """Let go of all plans and of the weights' file; nothing can be planned afterwards."""
        self._compiled.clear()
        self._weights = {}
