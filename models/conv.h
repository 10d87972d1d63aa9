// Convolutions of small images, float32, forward and backward: plain loops, compiled for each instruction set, the best of which
// is taken when the process starts. Included by _conv.pyx, which checks everything.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PARL_X86 1
#include <immintrin.h>
#endif

namespace conv {

// Images [in][height][width][n] to [out][height][width][n], with kernels of k · k, k 1 or 3, zeros around the images
struct Shape {
  long in, out, height, width, n, k;
};

struct Kernels {
  void (*convolve)(const Shape&, const float*, const float*, const float*, const float*, bool, float*);
  void (*weight_gradient)(const Shape&, const float*, const float*, float*);
  void (*channel_sums)(const float*, long, long, float*);
  void (*normalise)(const float*, long, long, float, const float*, const float*, const float*, bool, float*, float*, float*,
                    float*);
  void (*normalise_gradient)(float*, const float*, const float*, long, long, const float*, const float*, const float*, float*,
                             float*);
  void (*relu_gradient)(const float*, const float*, long, float*);
};

#define INLINE static inline __attribute__((always_inline))
#define VECTORS                                                                                  \
  typedef float V __attribute__((vector_size(VL * 4), aligned(4), may_alias));                   \
  typedef int32_t I __attribute__((vector_size(VL * 4), aligned(4), may_alias));
#define ALL {convolve, weight_gradient, channel_sums, normalise, normalise_gradient, relu_gradient}

#ifdef PARL_X86
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512dq,avx512vl,avx512bw,prefer-vector-width=512")
namespace avx512 {
constexpr int VL = 16;
VECTORS
INLINE V fma(V a, V b, V c) { return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INLINE V splat(float x) { return (V)_mm512_set1_ps(x); }
#include "conv_kernels.h"
constexpr Kernels kernels = ALL;
}  // namespace avx512
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
constexpr int VL = 8;
VECTORS
INLINE V fma(V a, V b, V c) { return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE V splat(float x) { return (V)_mm256_set1_ps(x); }
#include "conv_kernels.h"
constexpr Kernels kernels = ALL;
}  // namespace avx2
#pragma GCC pop_options
#endif
namespace plain {
constexpr int VL = 4;
VECTORS
INLINE V fma(V a, V b, V c) { return a * b + c; }
INLINE V splat(float x) { return V{x, x, x, x}; }
#include "conv_kernels.h"
constexpr Kernels kernels = ALL;
}  // namespace plain

// The kernels of this level, or the best below it that the processor has: 2 AVX-512, 1 AVX2 with FMA, 0 neither
inline const Kernels* kernels_of(int level, int* taken) {
#ifdef PARL_X86
  __builtin_cpu_init();
  if (level >= 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")) {
    *taken = 2;
    return &avx512::kernels;
  }
  if (level >= 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    *taken = 1;
    return &avx2::kernels;
  }
#endif
  *taken = 0;
  return &plain::kernels;
}

}  // namespace conv
