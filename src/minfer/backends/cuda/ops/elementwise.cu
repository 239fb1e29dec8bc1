// Element by element: y = f(a, b).
//
// Shapes:  a, b, y f32 [n]; y may be a. `constant` is the factor of scale, the cap of softcap.
// Who:     a thread four values where n allows, so 16-byte accesses.
// Floor:   12 bytes a value (8 for one operand).
// Numerics: f32; exponentials within 2 ulp. gelu is the tanh approximation.
// Macros:  OP: 0 add, 1 mul, 2 scale, 3 softcap, 4 silu(a) * b, 5 gelu(a) * b; WIDE (1: n % 4 ==
//          0).
#include "lib/base.cuh"

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

DEVICE float apply(float a, float b, float constant) {
    if (OP == 0) return a + b;
    if (OP == 1) return a * b;
    if (OP == 2) return a * constant;
    if (OP == 3) return constant * tanhf(a / constant);
    if (OP == 4) return a * sigmoid(a) * b;
    float inner = 0.7978845608028654f * a * (1.0f + 0.044715f * a * a);
    return 0.5f * a * (1.0f + tanhf(inner)) * b;
}

constexpr bool BINARY = OP != 2 && OP != 3;

KERNEL elementwise(const float* a, const float* b, float* y, i64 n, float constant) {
    pdl_launch();
    pdl_wait();
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
#if WIDE
    if (4 * i >= n) return;
    float4 p = ((const float4*)a)[i];
    float4 q = BINARY ? ((const float4*)b)[i] : make_float4(0, 0, 0, 0);
    ((float4*)y)[i] = make_float4(apply(p.x, q.x, constant), apply(p.y, q.y, constant),
                                  apply(p.z, q.z, constant), apply(p.w, q.w, constant));
#else
    if (i >= n) return;
    y[i] = apply(a[i], BINARY ? b[i] : 0.0f, constant);
#endif
}
