"""Writes `docs/support.md`: what each backend runs, asked of the backends themselves.

The nodes asked about come from one made-up decoder that has every part, unfused and fused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from minfer.backends import BACKENDS, Backend, reason_against
from minfer.dtypes import BY_NAME, F16, F32, WEIGHT_TYPES, DType
from minfer.graph import OPS, Graph, GraphBuilder, Node, RopeSpec, WeightSpec
from minfer.models import ARCHITECTURES, DecoderConfig, LayerConfig, StepShape, build_decoder
from minfer.scheduler import Device, make_plan
from minfer.settings import Settings
from minfer.text import PRE_TOKENIZERS

WIDTH, HEAD, HEADS = 1024, 128, 8
CACHE_TYPES = ("f32", "f16", "q8_0")
HEAD_DIMS = (64, 80, 96, 112, 128, 192, 256)


@dataclass(frozen=True)
class _Anything:
    """Stands in for a backend that runs every node, so that every fusion happens."""

    name: str = "anything"

    def supports(self, node: Node, graph: Graph) -> str | None:
        return None


def page(notice: str) -> str:
    """The whole page."""
    names = list(BACKENDS)
    return (
        "\n\n".join(
            [
                "# What runs where",
                notice,
                "A cell is a check mark, or the reason the backend gives. What no backend runs is "
                "refused when the model is loaded.",
                "## Ops",
                _table("op", names, _ops()),
                "## Weight types",
                "In matrices (and, in brackets where it differs, embedding tables). One model may "
                "mix them.",
                _table("type", names, _types()),
                "## KV cache",
                _table("cache", names, _caches()),
                "Head sizes asked about: " + ", ".join(map(str, HEAD_DIMS)) + ".",
                "## Architectures",
                ", ".join(f"`{name}`" for name in ARCHITECTURES),
                "## Pre-tokenizers",
                "Byte-level vocabularies with `tokenizer.ggml.pre` one of "
                + ", ".join(f"`{name}`" for name in sorted(PRE_TOKENIZERS))
                + "; and SentencePiece-style vocabularies (`tokenizer.ggml.model` = `llama`).",
            ]
        )
        + "\n"
    )


def _table(first: str, names: list[str], rows: list[tuple[str, list[str]]]) -> str:
    lines = [f"| {first} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| `{name}` | {' | '.join(cells)} |" for name, cells in rows]
    return "\n".join(lines)


def _cell(backend: str, node: Node, graph: Graph) -> str:
    reason = reason_against(backend, node, graph)
    return "✓" if reason is None else reason.replace("|", "\\|")


def _ops() -> list[tuple[str, list[str]]]:
    found: dict[str, tuple[Node, Graph]] = {}
    plain = build_decoder(_decoder(), _shape("f16"))
    device = Device(cast(Backend, _Anything()))
    fused = make_plan(plain, [device], Settings()).graph
    for graph in (plain, fused, _rest()):
        for node in graph.nodes:
            found.setdefault(node.op, (node, graph))
    return [
        (op, [_cell(backend, *found[op]) for backend in BACKENDS]) for op in OPS if op != "input"
    ]


def _types() -> list[tuple[str, list[str]]]:
    rows = []
    for dtype in WEIGHT_TYPES:
        g = GraphBuilder({"w": WeightSpec(dtype, (WIDTH, WIDTH))}, {})
        embedded = g.embed(g.input("ids", (4,)), "w", "embed")
        product = g.matmul(embedded, "w", "matmul", 1)
        graph = g.build(product)
        cells = []
        for backend in BACKENDS:
            matrix, table = (_cell(backend, n, graph) for n in (product, embedded))
            cells.append(matrix if matrix == table else f"{matrix} ({table})")
        rows.append((dtype.name, cells))
    return rows


def _caches() -> list[tuple[str, list[str]]]:
    rows = []
    for cache in CACHE_TYPES:
        cells = []
        for backend in BACKENDS:
            refused = []
            for size in HEAD_DIMS:
                graph = build_decoder(_decoder(head_dim=size), _shape(cache))
                node = next(n for n in graph.nodes if n.op == "attention")
                if reason_against(backend, node, graph) is not None:
                    refused.append(str(size))
            cells.append(f"✓ but heads of {', '.join(refused)}" if refused else "✓")
        rows.append((cache, cells))
    return rows


def _rest() -> Graph:
    """The ops no decoder of ours has."""
    g = GraphBuilder({}, {})
    x = g.input("x", (4, WIDTH), F32)
    return g.build(g.scale(g.mul(x, x, "mul"), 2.0, "scale"))


def _shape(cache: str) -> StepShape:
    return StepShape(1, 64, 1, 1, 4, 4, BY_NAME[cache], sampled=True, penalized=True)


def _decoder(head_dim: int = HEAD, dtype: DType = F16) -> DecoderConfig:
    """One block with biases, per-head norms and caps on the logits; four heads a KV head."""
    rope = RopeSpec("neox", tuple(10000.0 ** (-i / head_dim) for i in range(0, head_dim, 2)))
    width, kv_width = HEADS * head_dim, 2 * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (WIDTH, 512),
        "output_norm": (WIDTH,),
        "blk.0.attn_norm": (WIDTH,),
        "blk.0.attn_q": (WIDTH, width),
        "blk.0.attn_k": (WIDTH, kv_width),
        "blk.0.attn_v": (WIDTH, kv_width),
        "blk.0.attn_q_norm": (head_dim,),
        "blk.0.attn_k_norm": (head_dim,),
        "blk.0.attn_output": (width, WIDTH),
        "blk.0.ffn_norm": (WIDTH,),
        "blk.0.ffn_gate": (WIDTH, WIDTH),
        "blk.0.ffn_up": (WIDTH, WIDTH),
        "blk.0.ffn_down": (WIDTH, WIDTH),
    }
    weights = {
        f"{name}.weight": WeightSpec(dtype if len(shape) == 2 else F32, shape)
        for name, shape in shapes.items()
    }
    for part, n in (("q", width), ("k", kv_width), ("v", kv_width)):
        weights[f"blk.0.attn_{part}.bias"] = WeightSpec(F32, (n,))
    return DecoderConfig(
        arch="example",
        width=WIDTH,
        ffn_width=WIDTH,
        n_heads=HEADS,
        n_kv_heads=2,
        head_dim=head_dim,
        n_vocab=512,
        n_ctx_train=256,
        eps=1e-6,
        layers=(LayerConfig(rope),),
        attn_scale=head_dim**-0.5,
        act="silu",
        qkv_bias=True,
        qk_norm=True,
        post_norms=False,
        embed_scale=1.0,
        attn_softcap=0.0,
        logit_softcap=30.0,
        head="token_embd.weight",
        weights=weights,
    )
