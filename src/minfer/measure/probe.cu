// What: the limits of a GPU for `minfer bench --floor`: one read of memory, and products of small
//       matrices whose operands stay in registers.
// Who does what: read - each thread sums 16-byte words, grid-strided; products - each warp repeats
//       four independent mma.sync, enough to keep its tensor core busy with its neighbours' help.
// Numerics: none; sums go to `sink` so that nothing is left out, and nobody reads them.

#define MMAS 4

extern "C" __global__ void read(const uint4* data, long long n_words, unsigned* sink) {
  unsigned sum = 0;
  long long stride = (long long)gridDim.x * blockDim.x;
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < n_words; i += 4 * stride) {
    uint4 a = data[i], b = data[i + stride], c = data[i + 2 * stride], d = data[i + 3 * stride];
    sum += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w;
    sum += c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  if (sum == 0x12345678u) *sink = sum;
}

extern "C" __global__ void float_products(int rounds, unsigned* sink) {
  unsigned a = 0x3c003c00u ^ threadIdx.x, b = 0x3c003c00u;
  float c[MMAS][4] = {};
  for (int r = 0; r < rounds; ++r)
#pragma unroll
    for (int i = 0; i < MMAS; ++i)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, "
          "{%5,%5}, {%0,%1,%2,%3};"
          : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
          : "r"(a), "r"(b));
  if (c[0][0] + c[1][1] + c[2][2] + c[3][3] == 1.25f) *sink = 1;
}

extern "C" __global__ void int8_products(int rounds, unsigned* sink) {
  unsigned a = threadIdx.x * 0x01010101u, b = 0x01020304u;
  int c[MMAS][4] = {};
  for (int r = 0; r < rounds; ++r)
#pragma unroll
    for (int i = 0; i < MMAS; ++i)
      asm volatile(
          "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, "
          "{%5,%5}, {%0,%1,%2,%3};"
          : "+r"(c[i][0]), "+r"(c[i][1]), "+r"(c[i][2]), "+r"(c[i][3])
          : "r"(a), "r"(b));
  if (c[0][0] + c[1][1] + c[2][2] + c[3][3] == 12345) *sink = 1;
}
