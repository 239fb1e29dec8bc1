"""A split's nodes as steps of native code: addresses, fusion, scratch. Nothing runs here.

What is fused, beyond the nodes the scheduler fused already:

- an `rms_norm` that only matrix products read becomes part of them: the normed row goes straight
  into their quantized form;
- neighbouring products of one input run as one step and quantize it once;
- cosines and sines of a rotary embedding are computed once a step and shared by all layers.

Lowering is a pure function of the addresses. It runs twice: to learn how much memory the program
needs for values that live within one run, and with that memory's address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from minfer.backends.base import Split
from minfer.backends.cpu import _native
from minfer.backends.cpu.weights import WeightStore
from minfer.backends.melt import melting_norms
from minfer.graph import (
    AttentionAttrs,
    EmbedAttrs,
    FusedFFNAttrs,
    FusedQKVAttrs,
    GatedAttrs,
    Graph,
    KVStoreAttrs,
    MatMulAttrs,
    Node,
    NormAttrs,
    RopeAttrs,
    RopeSpec,
    ScaleAttrs,
    SoftcapAttrs,
)

_ALIGNMENT = 64

_GATED = {"silu": _native.ElementwiseOp.silu_gated, "gelu": _native.ElementwiseOp.gelu_gated}
_GATES = {"silu": _native.Gate.silu, "gelu": _native.Gate.gelu}

StepArgs = (
    _native.RmsNorm
    | _native.Elementwise
    | _native.Gather
    | _native.Embed
    | _native.Rope
    | _native.KVStore
    | _native.QKVTail
    | _native.MatMul
)


@dataclass(frozen=True)
class Memory:
    """Where everything lives that outlasts a run.

    Attributes:
        arena: address of the arena.
        weights: resident weights.
        states: KV states by name.
    """

    arena: int
    weights: WeightStore
    states: Mapping[str, _native.KVState]


def compile_split(device: _native.Device, split: Split, memory: Memory) -> _native.Program:
    """The native program of a split."""
    measured = _Lowering(device, split, memory, values=0, scratch=0)
    measured.run()
    workspace = device.work_in(measured.values_bytes + measured.scratch_bytes)
    lowering = _Lowering(
        device,
        split,
        memory,
        values=workspace.address,
        scratch=workspace.address + measured.values_bytes,
    )
    lowering.run()
    program = _native.Program(device, workspace)
    for add in lowering.steps:
        add(program)
    layout = RowLayout.of(split.graph)
    if layout.counts is not None and layout.singles is not None:
        counts = memory.arena + split.offsets[layout.counts]
        limits = [layout.singles, layout.places - layout.singles, layout.output_places]
        program.expect_counts(counts, limits)
    return program


@dataclass(frozen=True)
class RowLayout:
    """How the rows of a graph are told apart.

    Attributes:
        counts: id of the input `counts`; None where every row is real.
        singles: leading places of single rows; None where no node says.
        places: rows of a step.
        outputs: ids of the nodes whose rows are output rows.
        output_places: rows of those.
    """

    counts: int | None
    singles: int | None
    places: int
    outputs: frozenset[int]
    output_places: int

    @staticmethod
    def of(graph: Graph) -> RowLayout:
        """The layout of a graph's rows."""
        singles: int | None = None
        places = output_places = 0
        for node in graph.nodes:
            if node.id in graph.output_rows:
                output_places = node.shape[0]
            elif singles is None and hasattr(node.attrs, "single_rows"):
                singles, places = cast(int, node.attrs.single_rows), node.shape[0]
        counts = graph.inputs.get("counts")
        return RowLayout(
            None if counts is None else counts.id,
            singles,
            places,
            graph.output_rows,
            output_places,
        )


class _Lowering:
    """One pass over the nodes of a split.

    Args:
        values: address of the memory for values that live within a run.
        scratch: address of the memory that steps use in turn.

    Attributes:
        steps: each adds one step to a program.
        values_bytes, scratch_bytes: what the steps need of the two.
    """

    def __init__(
        self, device: _native.Device, split: Split, memory: Memory, values: int, scratch: int
    ) -> None:
        self.steps: list[Callable[[_native.Program], None]] = []
        self.values_bytes = 0
        self.scratch_bytes = 0
        self._device = device
        self._split = split
        self._graph = split.graph
        self._memory = memory
        self._values = values
        self._scratch = scratch
        self._layout = RowLayout.of(split.graph)
        # The products of quantized weights cost more than bf16 attention does.
        self._rounded = any(w.dtype.is_quantized for w in split.graph.weights.values())
        self._norms = melting_norms(split)
        self._tables: dict[tuple[int, RopeSpec], int] = {}
        self._projected: dict[tuple[int, int], tuple[int, int]] = {}

    def run(self) -> None:
        """Lower every node, in order."""
        nodes = [self._graph.nodes[i] for i in self._split.nodes]
        at = 0
        while at < len(nodes):
            node = nodes[at]
            if node.id in self._norms:
                at += 1
            elif node.op == "matmul":
                group = _siblings(nodes, at)
                self._matmul(group)
                at += len(group)
            else:
                _LOWER[node.op](self, node)
                at += 1

    # Memory and rows

    def _at(self, node_id: int) -> int:
        """Address of a node's output."""
        return self._memory.arena + self._split.offsets[node_id]

    def _take(self, nbytes: int) -> int:
        """Memory for a value that other steps read."""
        address = self._values + self.values_bytes
        self.values_bytes += _aligned(nbytes)
        return address

    def _scratch_of(self, nbytes: int) -> int:
        self.scratch_bytes = max(self.scratch_bytes, nbytes)
        return self._scratch

    def _rows(self, node: Node, single_rows: int | None = None) -> _native.Rows:
        """Which rows of `node` are real."""
        outputs = node.id in self._layout.outputs
        counts = self._layout.counts
        if single_rows is None:
            single_rows = node.shape[0] if outputs else self._layout.singles
        if single_rows is None:  # nothing tells single rows from others: work on all places
            counts, single_rows = None, node.shape[0]
        return _native.Rows(
            counts=0 if counts is None else self._at(counts),
            places=node.shape[0],
            single_places=single_rows,
            outputs=outputs,
        )

    def _add(self, label: str, args: StepArgs) -> None:
        device = self._device  # a step must not keep the pass alive, and with it the weights
        self.steps.append(lambda program: program.add(device, label, args))

    # Matrix products

    def _product(self, weight: str, out: int, bias: str | None = None) -> _native.Product:
        matrix = self._memory.weights.matrix(weight)
        return _native.Product(
            format=matrix.format,
            n_out=matrix.n_out,
            packed=matrix.address,
            bias=0 if bias is None else self._memory.weights.vector(bias),
            out=out,
        )

    def _multiply(
        self,
        label: str,
        node: Node,
        single_rows: int,
        products: list[_native.Product],
        gate: _native.Gate = _native.Gate.none,
    ) -> None:
        """The step that applies `products` to the first source of `node`."""
        source = self._graph.nodes[node.srcs[0]]
        norm = self._norms.get(source.id)
        args = _native.MatMul(
            rows=self._rows(node, single_rows),
            n_in=source.shape[1],
            x=self._at(norm.srcs[0] if norm else source.id),
            products=products,
            gate=gate,
        )
        if norm:
            args.norm_weight = self._memory.weights.vector(norm.weights[0])
            args.norm_eps = cast(NormAttrs, norm.attrs).eps
        args.scratch = self._scratch_of(self._device.matmul_scratch_bytes(args))
        self._add(label, args)

    def _matmul(self, group: Sequence[Node]) -> None:
        products = []
        for node in group:
            attrs = cast(MatMulAttrs, node.attrs)
            bias = node.weights[1] if attrs.bias else None
            product = self._product(node.weights[0], self._at(node.id), bias)
            if attrs.residual:
                product.residual = self._at(node.srcs[1])
            products.append(product)
        label = " + ".join(node.name for node in group)
        self._multiply(label, group[0], cast(MatMulAttrs, group[0].attrs).single_rows, products)

    def _fused_ffn(self, node: Node) -> None:
        attrs = cast(FusedFFNAttrs, node.attrs)
        products = [self._product(weight, self._at(node.id)) for weight in node.weights]
        self._multiply(node.name, node, attrs.single_rows, products, _GATES[attrs.act])

    def _fused_qkv(self, node: Node) -> None:
        attrs = cast(FusedQKVAttrs, node.attrs)
        width = attrs.n_kv_heads * attrs.head_dim
        key = (node.shape[0], width)
        if key not in self._projected:
            nbytes = node.shape[0] * width * 4
            self._projected[key] = (self._take(nbytes), self._take(nbytes))
        k, v = self._projected[key]
        biases = node.weights[3:6] if attrs.bias else (None, None, None)
        outs = (self._at(node.id), k, v)
        products = [
            self._product(weight, out, bias)
            for weight, out, bias in zip(node.weights[:3], outs, biases, strict=True)
        ]
        self._multiply(f"{node.name} (product)", node, attrs.single_rows, products)
        rows = self._rows(node, attrs.single_rows)
        tail = _native.QKVTail(
            rows=rows,
            q=self._at(node.id),
            k=k,
            v=v,
            cells=self._at(node.srcs[2]),
            rotation=self._rotation(rows, node.srcs[1], attrs.rope),
            n_heads=attrs.n_heads,
            kv=self._memory.states[attrs.state],
        )
        if attrs.norm_eps is not None:
            tail.q_norm, tail.k_norm = map(self._memory.weights.vector, node.weights[-2:])
            tail.eps = attrs.norm_eps
        self._add(f"{node.name} (rope and store)", tail)

    # Position and attention

    def _rotation(self, rows: _native.Rows, positions: int, rope: RopeSpec) -> _native.Rotation:
        """The rotation of a step's rows; its table is computed where it is first needed."""
        n_pairs = len(rope.inv_freq)
        key = (positions, rope)
        if key not in self._tables:
            address = self._tables[key] = self._take(rows.places * 2 * n_pairs * 4)
            args = _native.RopeTable(
                rows=rows,
                positions=self._at(positions),
                magnitude=rope.magnitude,
                table=address,
            )
            device = self._device
            # It touches nothing of the step before, so the two share a barrier.
            self.steps.append(
                lambda program: program.add_rope_table(
                    device, "rope table", args, list(rope.inv_freq), joined=True
                )
            )
        return _native.Rotation(
            table=self._tables[key], n_pairs=n_pairs, interleaved=rope.style == "interleaved"
        )

    def _rope(self, node: Node) -> None:
        attrs = cast(RopeAttrs, node.attrs)
        rows = self._rows(node)
        args = _native.Rope(
            rows=rows,
            x=self._at(node.srcs[0]),
            y=self._at(node.id),
            rotation=self._rotation(rows, node.srcs[1], attrs.rope),
            n_heads=attrs.n_heads,
            head_dim=attrs.head_dim,
        )
        self._add(node.name, args)

    def _kv_store(self, node: Node) -> None:
        k, v, cells = node.srcs
        args = _native.KVStore(
            rows=self._rows(self._graph.nodes[k]),
            k=self._at(k),
            v=self._at(v),
            cells=self._at(cells),
            kv=self._memory.states[cast(KVStoreAttrs, node.attrs).state],
        )
        self._add(node.name, args)

    def _attention(self, node: Node) -> None:
        attrs = cast(AttentionAttrs, node.attrs)
        q, positions, seqs, page_table, _ = node.srcs
        n_slots, max_pages = self._graph.nodes[page_table].shape
        args = _native.Attention(
            rows=self._rows(node, attrs.single_rows),
            q=self._at(q),
            y=self._at(node.id),
            positions=self._at(positions),
            seqs=self._at(seqs),
            page_table=self._at(page_table),
            n_slots=n_slots,
            max_pages=max_pages,
            kv=self._memory.states[attrs.state],
            n_heads=attrs.n_heads,
            scale=attrs.scale,
            window=attrs.window,
            softcap=attrs.softcap,
            rounded=self._rounded,
        )
        # Single and other rows run side by side, in scratch of their own.
        single = _aligned(self._device.attention_single_scratch_bytes(args))
        other = self._device.attention_other_scratch_bytes(args)
        args.scratch = self._scratch_of(single + other)
        device = self._device
        self.steps.append(
            lambda program: program.add_attention(device, node.name, args, args.scratch + single)
        )

    # Rows and elements

    def _embed(self, node: Node) -> None:
        table = self._memory.weights.table(node.weights[0])
        width, n_rows = table.spec.shape
        args = _native.Embed(
            rows=self._rows(node),
            table=table.data.ctypes.data,
            format=_native.Format[table.spec.dtype.name],
            row_bytes=table.spec.dtype.nbytes(width),
            n_rows=n_rows,
            ids=self._at(node.srcs[0]),
            y=self._at(node.id),
            width=width,
            scale=cast(EmbedAttrs, node.attrs).scale,
        )
        self._add(node.name, args)

    def _rms_norm(self, node: Node) -> None:
        attrs = cast(NormAttrs, node.attrs)
        args = _native.RmsNorm(
            rows=self._rows(node),
            x=self._at(node.srcs[0]),
            weight=self._memory.weights.vector(node.weights[0]),
            y=self._at(node.id),
            residual=self._at(node.srcs[1]) if attrs.residual else 0,
            groups=node.shape[1] // attrs.width,
            width=attrs.width,
            eps=attrs.eps,
        )
        self._add(node.name, args)

    def _gather(self, node: Node) -> None:
        x, index = node.srcs
        args = _native.Gather(
            rows=self._rows(node),
            x=self._at(x),
            index=self._at(index),
            y=self._at(node.id),
            n_rows=self._graph.nodes[x].shape[0],
            width=node.shape[1],
        )
        self._add(node.name, args)

    def _elementwise(self, node: Node) -> None:
        op, factor = _elementwise_of(node)
        args = _native.Elementwise(
            rows=self._rows(node),
            op=op,
            a=self._at(node.srcs[0]),
            b=self._at(node.srcs[1]) if len(node.srcs) > 1 else 0,
            y=self._at(node.id),
            width=node.shape[1],
            factor=factor,
        )
        self._add(node.name, args)


_LOWER: dict[str, Callable[[_Lowering, Node], None]] = {
    "embed": _Lowering._embed,
    "rms_norm": _Lowering._rms_norm,
    "rope": _Lowering._rope,
    "kv_store": _Lowering._kv_store,
    "attention": _Lowering._attention,
    "gated": _Lowering._elementwise,
    "add": _Lowering._elementwise,
    "mul": _Lowering._elementwise,
    "scale": _Lowering._elementwise,
    "softcap": _Lowering._elementwise,
    "rows": _Lowering._gather,
    "fused_ffn": _Lowering._fused_ffn,
    "fused_qkv": _Lowering._fused_qkv,
}


def _aligned(nbytes: int) -> int:
    return (nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def _siblings(nodes: Sequence[Node], at: int) -> list[Node]:
    """The products from `at` on that can share a step: of one input, without residuals."""
    first = nodes[at]
    group = [first]
    for node in nodes[at + 1 : at + _native.MAX_PRODUCTS]:
        if (
            node.op != "matmul"
            or node.srcs != first.srcs
            or len(node.srcs) > 1
            or cast(MatMulAttrs, node.attrs).single_rows
            != cast(MatMulAttrs, first.attrs).single_rows
        ):
            break
        group.append(node)
    return group


def _elementwise_of(node: Node) -> tuple[_native.ElementwiseOp, float]:
    attrs = node.attrs
    match attrs:
        case GatedAttrs():
            return _GATED[attrs.act], 1.0
        case ScaleAttrs():
            return _native.ElementwiseOp.scale, attrs.factor
        case SoftcapAttrs():
            return _native.ElementwiseOp.softcap, attrs.cap
        case _:
            return _native.ElementwiseOp[node.op], 1.0
