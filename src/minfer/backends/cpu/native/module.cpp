// The Python module: kernels' arguments as keyword classes, programs, memory. No computation here.
//
// Addresses are plain integers: the backend's Python code owns the memory and computes offsets. A
// call that runs kernels releases the interpreter lock.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "isa.h"
#include "kernels.h"
#include "memory.h"
#include "program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace minfer {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Kernels of one instruction set, the team that runs them, and the memory that programs work in.
struct Device {
    Device(const std::string& isa, int threads, int cores)
        : kernels(&kernels_for(isa)), team(std::make_shared<Team>(threads, cores)) {}

    const Kernels* kernels;
    std::shared_ptr<Team> team;
    std::shared_ptr<Region> workspace;

    // Memory of at least `nbytes` for values that live within one run. Programs share it, since
    // only one runs at a time; one compiled before it grew keeps what it had.
    std::shared_ptr<Region> work_in(size_t nbytes) {
        if (!workspace || workspace->nbytes() < nbytes) {
            workspace = std::make_shared<Region>(nbytes);
        }
        return workspace;
    }

    void pack(const PackArgs& args) {
        struct Job {
            const Device* device;
            const PackArgs* args;
        } job{this, &args};
        team->run(
            [](void* context, const Lane& lane) {
                const auto* j = static_cast<const Job*>(context);
                j->device->kernels->pack(*j->args, lane);
            },
            &job);
    }
};

// Field of type T* as an address.
template <class Args, class T>
void pointer(nb::class_<Args>& c, const char* name, T* Args::*field) {
    c.def_prop_rw(
        name, [field](const Args& a) { return reinterpret_cast<uintptr_t>(a.*field); },
        [field](Args& a, uintptr_t address) { a.*field = reinterpret_cast<T*>(address); });
}

// A class whose constructor takes its fields as keywords.
template <class Args>
nb::class_<Args> keyword_class(nb::module_& m, const char* name) {
    nb::class_<Args> c(m, name);
    c.def("__init__", [](nb::pointer_and_handle<Args> self, const nb::kwargs& fields) {
        new (self.p) Args{};
        nb::inst_mark_ready(self.h);
        for (const auto& [key, value] : fields) nb::setattr(self.h, key, value);
    });
    return c;
}

template <class Args>
void step(nb::class_<Program>& c, Kernel<Args> Kernels::*kernel) {
    c.def(
        "add",
        [kernel](Program& self, const Device& device, std::string label, Args args, bool joined) {
            if constexpr (requires { args.fault; }) args.fault = self.fault();
            if constexpr (requires { args.queue; }) args.queue = self.own<Queue>();
            self.add(std::move(label), device.kernels->*kernel, args, joined);
        },
        "device"_a, "label"_a, "args"_a, "joined"_a = false);
}

void bind_arguments(nb::module_& m) {
    auto rows = keyword_class<Rows>(m, "Rows");
    pointer(rows, "counts", &Rows::counts);
    rows.def_rw("places", &Rows::places)
        .def_rw("single_places", &Rows::single_places)
        .def_rw("outputs", &Rows::outputs);

    nb::enum_<KVType>(m, "KVType")
        .value("f32", KVType::f32)
        .value("f16", KVType::f16)
        .value("q8_0", KVType::q8_0);
    auto kv = keyword_class<KVState>(m, "KVState");
    pointer(kv, "base", &KVState::base);
    kv.def_rw("n_pages", &KVState::n_pages)
        .def_rw("n_kv_heads", &KVState::n_kv_heads)
        .def_rw("head_dim", &KVState::head_dim)
        .def_rw("type", &KVState::type)
        .def_prop_ro("page_bytes", &KVState::page_bytes);

    auto norm = keyword_class<RmsNormArgs>(m, "RmsNorm");
    pointer(norm, "x", &RmsNormArgs::x);
    pointer(norm, "weight", &RmsNormArgs::weight);
    pointer(norm, "residual", &RmsNormArgs::residual);
    pointer(norm, "y", &RmsNormArgs::y);
    norm.def_rw("rows", &RmsNormArgs::rows)
        .def_rw("groups", &RmsNormArgs::groups)
        .def_rw("width", &RmsNormArgs::width)
        .def_rw("eps", &RmsNormArgs::eps);

    nb::enum_<Elementwise>(m, "ElementwiseOp")
        .value("add", Elementwise::add)
        .value("mul", Elementwise::mul)
        .value("scale", Elementwise::scale)
        .value("softcap", Elementwise::softcap)
        .value("silu_gated", Elementwise::silu_gated)
        .value("gelu_gated", Elementwise::gelu_gated);
    auto elementwise = keyword_class<ElementwiseArgs>(m, "Elementwise");
    pointer(elementwise, "a", &ElementwiseArgs::a);
    pointer(elementwise, "b", &ElementwiseArgs::b);
    pointer(elementwise, "y", &ElementwiseArgs::y);
    elementwise.def_rw("rows", &ElementwiseArgs::rows)
        .def_rw("op", &ElementwiseArgs::op)
        .def_rw("width", &ElementwiseArgs::width)
        .def_rw("factor", &ElementwiseArgs::factor);

    auto gather = keyword_class<GatherArgs>(m, "Gather");
    pointer(gather, "x", &GatherArgs::x);
    pointer(gather, "index", &GatherArgs::index);
    pointer(gather, "y", &GatherArgs::y);
    gather.def_rw("rows", &GatherArgs::rows)
        .def_rw("n_rows", &GatherArgs::n_rows)
        .def_rw("width", &GatherArgs::width);

    auto embed = keyword_class<EmbedArgs>(m, "Embed");
    pointer(embed, "table", &EmbedArgs::table);
    pointer(embed, "ids", &EmbedArgs::ids);
    pointer(embed, "y", &EmbedArgs::y);
    embed.def_rw("rows", &EmbedArgs::rows)
        .def_rw("format", &EmbedArgs::format)
        .def_rw("row_bytes", &EmbedArgs::row_bytes)
        .def_rw("n_rows", &EmbedArgs::n_rows)
        .def_rw("width", &EmbedArgs::width)
        .def_rw("scale", &EmbedArgs::scale);

    auto table = keyword_class<RopeTableArgs>(m, "RopeTable");
    pointer(table, "positions", &RopeTableArgs::positions);
    pointer(table, "table", &RopeTableArgs::table);
    table.def_rw("rows", &RopeTableArgs::rows)
        .def_rw("n_pairs", &RopeTableArgs::n_pairs)
        .def_rw("magnitude", &RopeTableArgs::magnitude);

    auto rotation = keyword_class<Rotation>(m, "Rotation");
    pointer(rotation, "table", &Rotation::table);
    rotation.def_rw("n_pairs", &Rotation::n_pairs).def_rw("interleaved", &Rotation::interleaved);

    auto rope = keyword_class<RopeArgs>(m, "Rope");
    pointer(rope, "x", &RopeArgs::x);
    pointer(rope, "y", &RopeArgs::y);
    rope.def_rw("rows", &RopeArgs::rows)
        .def_rw("rotation", &RopeArgs::rotation)
        .def_rw("n_heads", &RopeArgs::n_heads)
        .def_rw("head_dim", &RopeArgs::head_dim);

    auto store = keyword_class<KVStoreArgs>(m, "KVStore");
    pointer(store, "k", &KVStoreArgs::k);
    pointer(store, "v", &KVStoreArgs::v);
    pointer(store, "cells", &KVStoreArgs::cells);
    store.def_rw("rows", &KVStoreArgs::rows).def_rw("kv", &KVStoreArgs::kv);

    auto tail = keyword_class<QKVTailArgs>(m, "QKVTail");
    pointer(tail, "q", &QKVTailArgs::q);
    pointer(tail, "k", &QKVTailArgs::k);
    pointer(tail, "v", &QKVTailArgs::v);
    pointer(tail, "cells", &QKVTailArgs::cells);
    pointer(tail, "q_norm", &QKVTailArgs::q_norm);
    pointer(tail, "k_norm", &QKVTailArgs::k_norm);
    tail.def_rw("rows", &QKVTailArgs::rows)
        .def_rw("eps", &QKVTailArgs::eps)
        .def_rw("rotation", &QKVTailArgs::rotation)
        .def_rw("n_heads", &QKVTailArgs::n_heads)
        .def_rw("kv", &QKVTailArgs::kv);

    auto attention = keyword_class<AttentionArgs>(m, "Attention");
    pointer(attention, "q", &AttentionArgs::q);
    pointer(attention, "y", &AttentionArgs::y);
    pointer(attention, "positions", &AttentionArgs::positions);
    pointer(attention, "seqs", &AttentionArgs::seqs);
    pointer(attention, "page_table", &AttentionArgs::page_table);
    pointer(attention, "scratch", &AttentionArgs::scratch);
    attention.def_rw("rows", &AttentionArgs::rows)
        .def_rw("n_slots", &AttentionArgs::n_slots)
        .def_rw("max_pages", &AttentionArgs::max_pages)
        .def_rw("kv", &AttentionArgs::kv)
        .def_rw("n_heads", &AttentionArgs::n_heads)
        .def_rw("scale", &AttentionArgs::scale)
        .def_rw("window", &AttentionArgs::window)
        .def_rw("softcap", &AttentionArgs::softcap)
        .def_rw("rounded", &AttentionArgs::rounded);

    nb::enum_<Format>(m, "Format")
        .value("f32", Format::F32)
        .value("f16", Format::F16)
        .value("bf16", Format::BF16)
        .value("q4_0", Format::Q4_0)
        .value("q4_1", Format::Q4_1)
        .value("q5_0", Format::Q5_0)
        .value("q5_1", Format::Q5_1)
        .value("q8_0", Format::Q8_0)
        .value("q2_K", Format::Q2_K)
        .value("q3_K", Format::Q3_K)
        .value("q4_K", Format::Q4_K)
        .value("q5_K", Format::Q5_K)
        .value("q6_K", Format::Q6_K)
        .value("iq4_nl", Format::IQ4_NL)
        .value("iq4_xs", Format::IQ4_XS)
        .value("mxfp4", Format::MXFP4);
    nb::enum_<Gate>(m, "Gate")
        .value("none", Gate::none)
        .value("silu", Gate::silu)
        .value("gelu", Gate::gelu);
    auto product = keyword_class<Product>(m, "Product");
    pointer(product, "packed", &Product::packed);
    pointer(product, "bias", &Product::bias);
    pointer(product, "residual", &Product::residual);
    pointer(product, "out", &Product::out);
    product.def_rw("format", &Product::format).def_rw("n_out", &Product::n_out);
    auto matmul = keyword_class<MatMulArgs>(m, "MatMul");
    matmul.def_rw("rows", &MatMulArgs::rows)
        .def_prop_rw(
            "x", [](const MatMulArgs& a) { return reinterpret_cast<uintptr_t>(a.m.x); },
            [](MatMulArgs& a, uintptr_t x) { a.m.x = reinterpret_cast<const float*>(x); })
        .def_prop_rw(
            "norm_weight",
            [](const MatMulArgs& a) { return reinterpret_cast<uintptr_t>(a.m.norm_weight); },
            [](MatMulArgs& a, uintptr_t w) {
                a.m.norm_weight = reinterpret_cast<const float*>(w);
            })
        .def_prop_rw(
            "scratch", [](const MatMulArgs& a) { return reinterpret_cast<uintptr_t>(a.m.scratch); },
            [](MatMulArgs& a, uintptr_t s) { a.m.scratch = reinterpret_cast<uint8_t*>(s); })
        .def_prop_rw(
            "n_in", [](const MatMulArgs& a) { return a.m.n_in; },
            [](MatMulArgs& a, int64_t n) { a.m.n_in = n; })
        .def_prop_rw(
            "norm_eps", [](const MatMulArgs& a) { return a.m.norm_eps; },
            [](MatMulArgs& a, float eps) { a.m.norm_eps = eps; })
        .def_prop_rw(
            "gate", [](const MatMulArgs& a) { return a.m.gate; },
            [](MatMulArgs& a, Gate gate) { a.m.gate = gate; })
        .def_prop_rw(
            "products",
            [](const MatMulArgs& a) {
                return std::vector<Product>(a.m.products, a.m.products + a.m.n_products);
            },
            [](MatMulArgs& a, const std::vector<Product>& products) {
                if (products.size() > MatMul::kMax) throw nb::value_error("too many products");
                a.m.n_products = int(products.size());
                std::copy(products.begin(), products.end(), a.m.products);
            });
    m.attr("MAX_PRODUCTS") = MatMul::kMax;
}

void bind_memory(nb::module_& m) {
    nb::class_<Region>(m, "Region")
        .def(nb::init<size_t>(), "nbytes"_a)
        .def_prop_ro("address",
                     [](const Region& r) { return reinterpret_cast<uintptr_t>(r.data()); })
        .def_prop_ro("nbytes", &Region::nbytes)
        .def(
            "view",
            [](nb::object self) {
                const auto& region = nb::cast<const Region&>(self);
                return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(
                    region.data(), {region.nbytes()}, self);
            },
            "All its bytes as an array that keeps it alive.");
    nb::class_<Pool>(m, "Pool")
        .def(nb::init<>())
        .def(
            "take",
            [](Pool& self, size_t nbytes) {
                return reinterpret_cast<uintptr_t>(self.take(nbytes));
            },
            "nbytes"_a)
        .def_prop_ro("taken", &Pool::taken);
    m.def(
        "drop_file_pages",
        [](const Bytes& data) { drop_file_pages(data.data(), data.size()); }, "data"_a);
    m.def(
        "copy_to", [](uintptr_t address, const Bytes& data) {
            std::memcpy(reinterpret_cast<void*>(address), data.data(), data.size());
        },
        "address"_a, "data"_a);
}

void bind_device(nb::module_& m) {
    m.def("available_isas", &available_isas);
    nb::class_<Pace>(m, "Pace")
        .def(nb::init<int>(), "most"_a)
        .def_prop_ro("count", &Pace::count)
        .def("note", &Pace::note, "begin"_a, "end"_a, "lost"_a);
    nb::class_<Device>(m, "Device")
        .def(nb::init<const std::string&, int, int>(), "isa"_a, "threads"_a, "cores"_a)
        .def(
            "packed_bytes",
            [](const Device& d, Format format, int64_t n_in, int64_t n_out) {
                return d.kernels->packed_bytes(format, n_in, n_out);
            },
            "format"_a, "n_in"_a, "n_out"_a)
        .def(
            "pack",
            [](Device& d, Format format, int64_t n_in, int64_t n_out, const Bytes& gguf,
               uintptr_t packed) {
                const PackArgs args{format, n_in, n_out, gguf.data(),
                                    reinterpret_cast<uint8_t*>(packed)};
                const nb::gil_scoped_release release;
                d.pack(args);
            },
            "format"_a, "n_in"_a, "n_out"_a, "gguf"_a, "packed"_a)
        .def(
            "matmul_scratch_bytes",
            [](const Device& d, const MatMulArgs& args) {
                return d.kernels->matmul_scratch_bytes(args, d.team->count());
            },
            "args"_a)
        .def(
            "attention_single_scratch_bytes",
            [](const Device& d, const AttentionArgs& args) {
                return d.kernels->attention_single_scratch_bytes(args);
            },
            "args"_a)
        .def(
            "attention_other_scratch_bytes",
            [](const Device& d, const AttentionArgs& args) {
                return d.kernels->attention_other_scratch_bytes(args, d.team->count());
            },
            "args"_a)
        .def("work_in", &Device::work_in, "nbytes"_a);
}

void bind_program(nb::module_& m) {
    nb::class_<Program> program(m, "Program");
    program
        .def("__init__",
             [](Program* self, const Device& device, std::shared_ptr<Region> workspace) {
                 new (self) Program(device.team);
                 self->own(std::move(workspace));
             },
             "device"_a, "workspace"_a)
        .def("run", &Program::run, nb::call_guard<nb::gil_scoped_release>())
        .def("profile", &Program::profile, nb::call_guard<nb::gil_scoped_release>(),
             "Run once; nanoseconds of each step.")
        .def("expect_counts", &Program::expect_counts, "counts"_a, "limits"_a)
        .def_prop_ro("labels", &Program::labels);
    step(program, &Kernels::rms_norm);
    step(program, &Kernels::elementwise);
    step(program, &Kernels::gather);
    step(program, &Kernels::embed);
    step(program, &Kernels::rope);
    step(program, &Kernels::kv_store);
    step(program, &Kernels::qkv_tail);
    step(program, &Kernels::matmul);
    program.def(
        "add_rope_table",
        [](Program& self, const Device& device, std::string label, RopeTableArgs args,
           std::vector<double> inv_freq, bool joined) {
            args.n_pairs = int64_t(inv_freq.size());
            args.inv_freq = self.own(std::move(inv_freq))->data();
            self.add(std::move(label), device.kernels->rope_table, args, joined);
        },
        "device"_a, "label"_a, "args"_a, "inv_freq"_a, "joined"_a = false);
    program.def(
        "add_attention",
        [](Program& self, const Device& device, const std::string& label, AttentionArgs args,
           uintptr_t other_scratch) {
            args.fault = self.fault();
            const bool singles = args.rows.single_places > 0;
            if (singles) {
                args.queue = self.own<Queue>();
                self.add(label, device.kernels->attention_single, args);
            }
            if (args.rows.places > args.rows.single_places) {
                AttentionArgs other = args;
                other.queue = self.own<Queue>();
                other.scratch = reinterpret_cast<uint8_t*>(other_scratch);
                self.add(label + " (other rows)", device.kernels->attention_other, other, singles);
            }
            if (singles) self.add(label + " (combine)", device.kernels->attention_combine, args);
        },
        "device"_a, "label"_a, "args"_a, "other_scratch"_a);
}

}  // namespace
}  // namespace minfer

NB_MODULE(_native, m) {
    using namespace minfer;
    m.doc() = "Kernels, threads and memory of the CPU backend.";
    bind_memory(m);
    bind_arguments(m);
    bind_device(m);
    bind_program(m);
}
