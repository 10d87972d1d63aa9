// Compiles the loops of KERNELS_FILE, which work on vectors of VL numbers, for each instruction set, and takes the best of them.
// Included inside a namespace that has `Kernels`, where ALL names the functions of these; once in each extension.
#define INLINE static inline __attribute__((always_inline))
#define VECTORS                                                                                  \
  typedef float V __attribute__((vector_size(VL * 4), aligned(4), may_alias));                   \
  typedef int32_t I __attribute__((vector_size(VL * 4), aligned(4), may_alias));

#ifdef PARL_X86
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512dq,avx512vl,avx512bw,prefer-vector-width=512")
namespace avx512 {
constexpr int VL = 16;
VECTORS
INLINE V fma(V a, V b, V c) { return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INLINE V splat(float x) { return (V)_mm512_set1_ps(x); }
#include KERNELS_FILE
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
#include KERNELS_FILE
constexpr Kernels kernels = ALL;
}  // namespace avx2
#pragma GCC pop_options
#endif
namespace plain {
constexpr int VL = 4;
VECTORS
INLINE V fma(V a, V b, V c) { return a * b + c; }
INLINE V splat(float x) { return V{x, x, x, x}; }
#include KERNELS_FILE
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
