// Measures what a processor allows at most: bytes read from memory a second, multiplications and
// additions of 32-bit floats and of 8-bit integers. Arithmetic stays in registers, so nothing else
// is on the clock. No kernel of minfer is used: it would be its own judge.
//
// Each figure is that of `threads` threads together, from a common start to the last one's end.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#define TARGET(isa) __attribute__((target(isa)))
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace {

// A unit of work answers how many operations (or bytes) `rounds` of it are; the sink keeps the
// compiler from leaving it out.
using Work = double (*)(int64_t rounds, uint32_t seed, volatile uint32_t* sink);

constexpr int kAccumulators = 10;  // enough to cover latency times ports, few enough for registers

double plain_float(int64_t rounds, uint32_t seed, volatile uint32_t* sink) {
  float a[kAccumulators][4] = {}, x = 1.0f + seed * 1e-9f;
  for (int64_t r = 0; r < rounds; ++r)
    for (auto& v : a)
      for (float& f : v) f = f * x + x;
  float sum = 0;
  for (auto& v : a) sum += v[0] + v[3];
  uint32_t bits;
  std::memcpy(&bits, &sum, 4);
  *sink = bits;
  return 2.0 * 4 * kAccumulators * rounds;
}

double plain_int8(int64_t rounds, uint32_t seed, volatile uint32_t* sink) {
  int8_t x[64], y[64];
  for (int i = 0; i < 64; ++i) x[i] = int8_t(seed + i), y[i] = int8_t(seed ^ i);
  int32_t sum = 0;
  for (int64_t r = 0; r < rounds; ++r) {
    x[r & 63] ^= 1;
    for (int i = 0; i < 64; ++i) sum += x[i] * y[i];
  }
  *sink = uint32_t(sum);
  return 2.0 * 64 * rounds;
}

#if defined(__x86_64__)

TARGET("avx512f") double avx512_float(int64_t rounds, uint32_t seed, volatile uint32_t* sink) {
  __m512 a[kAccumulators], x = _mm512_set1_ps(1.0f + seed * 1e-9f);
  for (auto& v : a) v = x;
  for (int64_t r = 0; r < rounds; ++r)
    for (auto& v : a) v = _mm512_fmadd_ps(v, x, x);
  __m512 sum = a[0];
  for (auto& v : a) sum = _mm512_add_ps(sum, v);
  *sink = uint32_t(_mm512_reduce_add_ps(sum));
  return 2.0 * 16 * kAccumulators * rounds;
}

TARGET("avx512f,avx512bw,avx512vnni")
double vnni_int8(int64_t rounds, uint32_t seed, volatile uint32_t* sink) {
  __m512i a[kAccumulators], x = _mm512_set1_epi32(int(seed * 0x01010101u));
  for (auto& v : a) v = x;
  for (int64_t r = 0; r < rounds; ++r)
    for (auto& v : a) v = _mm512_dpbusd_epi32(v, x, x);
  __m512i sum = a[0];
  for (auto& v : a) sum = _mm512_add_epi32(sum, v);
  *sink = uint32_t(_mm512_reduce_add_epi32(sum));
  return 2.0 * 64 * kAccumulators * rounds;
}

TARGET("avx2,fma") double avx2_float(int64_t rounds, uint32_t seed, volatile uint32_t* sink) {
  __m256 a[kAccumulators], x = _mm256_set1_ps(1.0f + seed * 1e-9f);
  for (auto& v : a) v = x;
  for (int64_t r = 0; r < rounds; ++r)
    for (auto& v : a) v = _mm256_fmadd_ps(v, x, x);
  __m256 sum = a[0];
  for (auto& v : a) sum = _mm256_add_ps(sum, v);
  *sink = uint32_t(_mm256_cvtss_f32(sum));
  return 2.0 * 8 * kAccumulators * rounds;
}

TARGET("avx2") double avx2_int8(int64_t rounds, uint32_t seed, volatile uint32_t* sink) {
  __m256i a[kAccumulators], x = _mm256_set1_epi32(int(seed * 0x01010101u));
  const __m256i ones = _mm256_set1_epi16(1);
  for (auto& v : a) v = x;
  for (int64_t r = 0; r < rounds; ++r)
    for (auto& v : a) {
      // The product depends on the accumulator, or the compiler would compute it once.
      __m256i product = _mm256_maddubs_epi16(_mm256_xor_si256(x, v), x);
      v = _mm256_add_epi32(v, _mm256_madd_epi16(product, ones));
    }
  __m256i sum = a[0];
  for (auto& v : a) sum = _mm256_add_epi32(sum, v);
  *sink = uint32_t(_mm256_extract_epi32(sum, 0));
  return 2.0 * 32 * kAccumulators * rounds;
}

#elif defined(__ARM_NEON)

double neon_float(int64_t rounds, uint32_t seed, volatile uint32_t* sink) {
  float32x4_t a[kAccumulators], x = vdupq_n_f32(1.0f + seed * 1e-9f);
  for (auto& v : a) v = x;
  for (int64_t r = 0; r < rounds; ++r)
    for (auto& v : a) v = vfmaq_f32(x, v, x);
  float32x4_t sum = a[0];
  for (auto& v : a) sum = vaddq_f32(sum, v);
  *sink = uint32_t(vgetq_lane_f32(sum, 0));
  return 2.0 * 4 * kAccumulators * rounds;
}

#if defined(__ARM_FEATURE_DOTPROD)
double neon_int8(int64_t rounds, uint32_t seed, volatile uint32_t* sink) {
  int32x4_t a[kAccumulators];
  int8x16_t x = vdupq_n_s8(int8_t(seed));
  for (auto& v : a) v = vdupq_n_s32(int(seed));
  for (int64_t r = 0; r < rounds; ++r)
    for (auto& v : a) v = vdotq_s32(v, x, x);
  int32x4_t sum = a[0];
  for (auto& v : a) sum = vaddq_s32(sum, v);
  *sink = uint32_t(vgetq_lane_s32(sum, 0));
  return 2.0 * 16 * kAccumulators * rounds;
}
#endif

#endif

struct Arithmetic {
  Work work;
  const char* how;
};

Arithmetic floats() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {avx512_float, "AVX-512 FMA"};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {avx2_float, "AVX2 FMA"};
#elif defined(__ARM_NEON)
  return {neon_float, "NEON FMA"};
#endif
  return {plain_float, "plain C++"};
}

Arithmetic integers() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512vnni")) return {vnni_int8, "AVX-512 VNNI"};
  if (__builtin_cpu_supports("avx2")) return {avx2_int8, "AVX2 maddubs"};
#elif defined(__ARM_FEATURE_DOTPROD)
  return {neon_int8, "NEON dot product"};
#endif
  return {plain_int8, "plain C++"};
}

// Seconds from the common start of `body(thread)` on all threads to the end of the last one.
template <typename Body>
double together(int threads, Body body) {
  std::atomic<int> waiting{threads};
  std::vector<std::thread> team;
  std::chrono::steady_clock::time_point begin;
  auto run = [&](int index) {
    if (waiting.fetch_sub(1) == 1) begin = std::chrono::steady_clock::now();
    while (waiting.load() > 0) std::this_thread::yield();
    body(index);
  };
  for (int i = 1; i < threads; ++i) team.emplace_back(run, i);
  run(0);
  for (auto& thread : team) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

constexpr int64_t kRounds = 1 << 20;

double operations(const Arithmetic& what, int threads, int repeats) {
  double best = 0;
  for (int n = 0; n < repeats; ++n) {
    std::vector<double> done(threads);
    volatile uint32_t sink = 0;
    double seconds = together(threads, [&](int i) {
      volatile uint32_t mine = 0;
      done[i] = what.work(kRounds, uint32_t(i + n + 1), &mine);
      if (i == 0) sink = mine;
    });
    double total = 0;
    for (double d : done) total += d;
    if (total / seconds > best) best = total / seconds;
  }
  return best;
}

uint64_t sum_of(const uint64_t* data, int64_t count) {
  // eight sums, so that reading and not adding is what takes the time
  uint64_t sums[8] = {};
  for (int64_t i = 0; i + 8 <= count; i += 8)
    for (int j = 0; j < 8; ++j) sums[j] += data[i + j];
  uint64_t all = 0;
  for (uint64_t s : sums) all += s;
  return all;
}

double reading(int64_t nbytes, int threads, int repeats) {
  int64_t count = nbytes / 8 / threads;
  std::vector<std::unique_ptr<uint64_t[]>> parts(threads);
  // each thread writes its part first: the pages then lie where it runs
  together(threads, [&](int i) {
    parts[i].reset(new uint64_t[count]);
    for (int64_t k = 0; k < count; ++k) parts[i][k] = uint64_t(k);
  });
  double best = 0;
  for (int n = 0; n < repeats; ++n) {
    std::vector<uint64_t> sums(threads);
    double seconds = together(threads, [&](int i) { sums[i] = sum_of(parts[i].get(), count); });
    volatile uint64_t sink = sums[0];
    (void)sink;
    double rate = 8.0 * count * threads / seconds;
    if (rate > best) best = rate;
  }
  return best;
}

}  // namespace

NB_MODULE(_probe, m) {
  namespace nb = nanobind;
  m.def(
      "read_bytes",
      [](int64_t nbytes, int threads, int repeats) {
        nb::gil_scoped_release release;
        return reading(nbytes, threads, repeats);
      },
      nb::arg("nbytes"), nb::arg("threads"), nb::arg("repeats"));
  m.def(
      "float_ops",
      [](int threads, int repeats) {
        nb::gil_scoped_release release;
        return operations(floats(), threads, repeats);
      },
      nb::arg("threads"), nb::arg("repeats"));
  m.def(
      "int8_ops",
      [](int threads, int repeats) {
        nb::gil_scoped_release release;
        return operations(integers(), threads, repeats);
      },
      nb::arg("threads"), nb::arg("repeats"));
  m.def("how", [] { return std::string(floats().how) + ", " + integers().how; });
}
