"""Requests on token ids: batching, KV pages, prefix reuse, sampling. No text, no devices."""

from minfer.engine.batcher import Chunk
from minfer.engine.config import Counters, EngineConfig
from minfer.engine.draft import Drafter, DraftModel, PromptLookup
from minfer.engine.engine import Engine, Watcher
from minfer.engine.lane import Lane
from minfer.engine.pages import PagePool, Prefix, PrefixCache
from minfer.engine.params import MAX_LOGPROBS, SamplingParams
from minfer.engine.sampling import Choice, Constraint, Sampler, log_softmax, top_candidates
from minfer.engine.sequence import Event, FinishReason, Sequence, State

__all__ = [
    "MAX_LOGPROBS",
    "Choice",
    "Chunk",
    "Constraint",
    "Counters",
    "DraftModel",
    "Drafter",
    "Engine",
    "EngineConfig",
    "Event",
    "FinishReason",
    "Lane",
    "PagePool",
    "Prefix",
    "PrefixCache",
    "PromptLookup",
    "Sampler",
    "SamplingParams",
    "Sequence",
    "State",
    "Watcher",
    "log_softmax",
    "top_candidates",
]
