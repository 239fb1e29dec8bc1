"""minfer and its peers behind one small interface, so that one loop can time them alternately."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from minfer.dtypes import BY_NAME
from minfer.engine import Engine, EngineConfig, SamplingParams
from minfer.gguf import open_gguf
from minfer.llm import file_weights
from minfer.models import model_config
from minfer.scheduler import Device
from minfer.settings import ROWS, Settings

UNTIMED = frozenset({"device", "api_keys", "cache_dir", "trace", "trace_format"})
"""Settings that are no switch of a measurement: recorded elsewhere, secret, or a folder."""


def switches(settings: Settings) -> str:
    """What of `settings` is not as usual, as it would be written before a command."""
    changed = [
        (row.name, getattr(settings, row.name))
        for row in ROWS
        if row.name not in UNTIMED and getattr(settings, row.name) != row.default
    ]
    return " ".join(f"MINFER_{n.upper()}={int(v) if v is True else v}" for n, v in changed)


class Rival(Protocol):
    """What the bench asks of an engine. Token ids in, seconds out."""

    name: str

    def prefill(self, ids: Sequence[int]) -> float:
        """Seconds to process a prompt nobody has seen, up to its last logits."""

    def decode(self, n: int, depth: int = 0, batch: int = 1) -> float:
        """Seconds to generate `n` tokens in each of `batch` sequences after `depth` tokens."""

    def logits(self, ids: Sequence[int], single: bool) -> NDArray[np.float32] | None:
        """Logits of every position, one row at a time if `single`; None if it cannot."""

    def close(self) -> None:
        """Free everything."""


class Minfer:
    """minfer's engine, sampling and scheduling included.

    Args:
        settings: its backend, switches and the type of its KV cache.
        n_ctx: tokens a sequence may have.
        batch: sequences at the same time.
        n_cells: tokens in the KV cache; by default enough for `batch` short sequences.
    """

    def __init__(
        self,
        path: Path,
        settings: Settings,
        n_ctx: int = 8192,
        batch: int = 8,
        prefill_rows: int = 512,
        n_cells: int = 0,
    ) -> None:
        from minfer.backends import create_backend

        self.name = "minfer"
        self._launches: float | None = None  # a step of the last run, if it was eager
        self._file = open_gguf(path)
        self.model = model_config(self._file)
        name = "cpu" if settings.device == "auto" else settings.device
        self.backend = create_backend(name, settings)
        sizes = EngineConfig(
            n_ctx,
            max(n_cells, n_ctx, 1024 * batch),
            max_sequences=batch,
            prefill_rows=prefill_rows,
            cache_type=BY_NAME[settings.cache_type],
            prefix_cache=False,
        )
        self.engine = Engine(
            self.model, file_weights(self._file), [Device(self.backend)], sizes, settings
        )

    def prefill(self, ids: Sequence[int]) -> float:
        self.engine.add(ids, SamplingParams(temperature=0.0, max_tokens=1))
        return self._run()

    def decode(self, n: int, depth: int = 0, batch: int = 1) -> float:
        random = np.random.default_rng(n + depth)
        for _ in range(batch):
            prompt = random.integers(0, self.model.n_vocab, depth + 1).tolist()
            self.engine.add(
                prompt, SamplingParams(temperature=0.0, max_tokens=n + 1, ignore_eos=True)
            )
        waiting = batch
        while waiting:  # until every prompt is done and has its first token
            waiting -= sum(1 for s, e in self.engine.step() if s.n_generated == 1 and e.choice)
        return self._run()

    def logits(self, ids: Sequence[int], single: bool) -> NDArray[np.float32]:
        return self.engine.forward(ids, single=single)

    def close(self) -> None:
        self.engine.close()
        self._file.close()

    def launches_a_step(self, work: Callable[[], object]) -> float | None:
        """Kernels a step of `work` takes, counted with CUDA graphs off; None on other backends.

        A step is a token of every sequence, or a chunk of a prompt.
        """
        backend: Any = self.backend
        if backend.name != "cuda":
            return None
        graphs, backend.graphs = backend.graphs, False
        try:
            work()
        finally:
            backend.graphs = graphs
        return self._launches

    def statistics(self) -> dict[str, Any]:
        """The CUDA backend's counters and bytes; nothing on other backends."""
        backend: Any = self.backend
        return dict(backend.statistics()) if backend.name == "cuda" else {}

    def _run(self) -> float:
        before = self.statistics()
        began = perf_counter()
        while self.engine.has_work:
            self.engine.step()
        seconds = perf_counter() - began
        after = self.statistics()
        runs = after["eager"] - before["eager"] if after else 0
        self._launches = (after["launches"] - before["launches"]) / runs if runs else None
        return seconds


class LlamaCpp:
    """llama.cpp through the low-level binding of `llama-cpp-python`."""

    def __init__(self, path: Path, threads: int, n_ctx: int = 8192, gpu_layers: int = 0) -> None:
        from llama_cpp import llama_cpp

        self.name = "llama.cpp"
        self._c: Any = llama_cpp
        self._quiet = self._c.llama_log_callback(lambda level, text, data: None)
        self._c.llama_log_set(self._quiet, ctypes.c_void_p(0))
        self._c.llama_backend_init()
        params = self._c.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        self._model = self._c.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self._vocab = self._c.llama_vocab_n_tokens(self._c.llama_model_get_vocab(self._model))
        params = self._c.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_ctx, 512
        params.n_threads = params.n_threads_batch = threads
        params.n_seq_max = 8
        params.kv_unified = True
        self._context = self._c.llama_init_from_model(self._model, params)

    def prefill(self, ids: Sequence[int]) -> float:
        self._clear()
        began = perf_counter()
        self._decode([(t, i, 0, i == len(ids) - 1) for i, t in enumerate(ids)])
        return perf_counter() - began

    def decode(self, n: int, depth: int = 0, batch: int = 1) -> float:
        self._clear()
        random = np.random.default_rng(n + depth)
        for seq in range(batch):
            prompt = random.integers(0, self._vocab, depth + 1).tolist()
            self._decode([(t, i, seq, i == depth) for i, t in enumerate(prompt)])
        tokens = random.integers(0, self._vocab, (n, batch)).tolist()
        began = perf_counter()
        for i, row in enumerate(tokens):
            self._decode([(t, depth + 1 + i, seq, True) for seq, t in enumerate(row)])
        return perf_counter() - began

    def logits(self, ids: Sequence[int], single: bool) -> NDArray[np.float32]:
        self._clear()
        out = np.empty((len(ids), self._vocab), np.float32)
        step = 1 if single else 512
        for start in range(0, len(ids), step):
            part = list(enumerate(ids[start : start + step]))
            self._decode([(t, start + i, 0, True) for i, t in part])
            for i, _ in part:
                row = self._c.llama_get_logits_ith(self._context, i)
                out[start + i] = np.ctypeslib.as_array(row, (self._vocab,))
        return out

    def close(self) -> None:
        self._c.llama_free(self._context)
        self._c.llama_model_free(self._model)

    def _clear(self) -> None:
        self._c.llama_memory_clear(self._c.llama_get_memory(self._context), True)

    def _decode(self, rows: Sequence[tuple[int, int, int, bool]]) -> None:
        """Rows of (token, position, sequence, wants logits)."""
        batch = self._c.llama_batch_init(len(rows), 0, 1)
        try:
            batch.n_tokens = len(rows)
            for i, (token, position, seq, wanted) in enumerate(rows):
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
                batch.seq_id[i][0], batch.logits[i] = seq, wanted
            status = self._c.llama_decode(self._context, batch)
            if status:
                raise RuntimeError(f"llama_decode answered {status}")
            self._c.llama_synchronize(self._context)
        finally:
            self._c.llama_batch_free(batch)


class OpenVINO:
    """OpenVINO GenAI, which reads some GGUF files; timings by its own counters."""

    def __init__(self, path: Path, threads: int) -> None:
        import openvino_genai

        self.name = "openvino"
        self._genai = openvino_genai
        self._pipe = openvino_genai.LLMPipeline(str(path), "CPU", INFERENCE_NUM_THREADS=threads)
        self._tokenizer = self._pipe.get_tokenizer()

    def prefill(self, ids: Sequence[int]) -> float:
        """Its prefix cache answers repeated prompts at once: `ids` must be new each time."""
        return float(self._generate(ids, 1).get_ttft().mean) / 1e3

    def decode(self, n: int, depth: int = 0, batch: int = 1) -> float:
        if batch != 1:
            raise ValueError("OpenVINO GenAI is measured with one sequence only")
        prompt = np.random.default_rng().integers(300, 40000, depth + 16)
        metrics = self._generate(prompt.tolist(), n + 1)
        return float(metrics.get_tpot().mean) / 1e3 * n

    def logits(self, ids: Sequence[int], single: bool) -> None:
        return None

    def close(self) -> None:
        del self._pipe

    def _generate(self, ids: Sequence[int], n: int) -> Any:
        import openvino

        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = n, True, False
        inputs = openvino.Tensor(np.asarray([list(ids)], np.int64))
        return self._pipe.generate(inputs, config).perf_metrics
