// Dense layers of float32, forward and backward, and the optimiser step: plain loops, compiled for each instruction set, the best
// of which is taken when the process starts. Included by _native.pyx, which checks everything.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PARL_X86 1
#include <immintrin.h>
#endif

namespace native {

enum Activation { IDENTITY, TANH, RELU, SILU };
enum Order : long { PANELS = 0, WEIGHTS = -1, TURNED = -2 };  // how the second factor of a product lies, if not in rows
constexpr long WIDTH = 16;  // rows of values begin at multiples of it, and are filled up with zeros
inline long pad(long n) { return (n + WIDTH - 1) / WIDTH * WIDTH; }
// Numbers between the beginnings of two rows: rows a power of two apart would share a few lines of the cache
inline long stride(long n) { return pad(n) % 128 ? pad(n) : pad(n) + WIDTH; }

// y = activation(norm(x w + b)); x: the network's input (source −1), or what an earlier layer gives out
struct Layer {
  int source, activation;
  bool transposed;  // w is [out, in], not [in, out]
  long n_in, n_out;
  const float *w, *b, *scale, *shift;     // b: null, or [out]; scale, shift: null, or those of a layer norm
  long dw, db, dscale, dshift;            // where their gradients begin
  float *panels, *padded_bias;            // room for both
};

// What one layer keeps of one forward pass: outputs, products before a silu, normalised rows and their slopes; and gradients
struct Values {
  float *y, *z, *h, *slope, *dy;
};

struct Adam {
  float weight_decay, old_moment, new_moment, old_square, new_square, step_size, eps;
};

struct Kernels {
  void (*forward)(const Layer&, const Values&, const float*, long, long, bool);
  void (*backward)(const Layer&, const Values&, const float*, long, float*, bool, long, float*);
  void (*pack)(const float*, bool, long, long, float*);
  double (*square_sum)(const float*, long);
  void (*scale)(float*, long, float);
  void (*adam)(float*, const float*, float*, float*, long, const Adam&);
};

#define INLINE static inline __attribute__((always_inline))
#define VECTORS                                                                                  \
  typedef float V __attribute__((vector_size(VL * 4), aligned(4), may_alias));                   \
  typedef int32_t I __attribute__((vector_size(VL * 4), aligned(4), may_alias));                 \
  constexpr long PANEL = 2 * VL, PIECE = 128;
#define ALL {forward_layer, backward_layer, pack, square_sum, scale, adam}

#ifdef PARL_X86
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512dq,avx512vl,avx512bw,prefer-vector-width=512")
namespace avx512 {
constexpr int VL = 16, BLOCK = 12, STEP = 4;
VECTORS
INLINE V fma(V a, V b, V c) { return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INLINE V splat(float x) { return (V)_mm512_set1_ps(x); }
#include "native_kernels.h"
constexpr Kernels kernels = ALL;
}  // namespace avx512
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
constexpr int VL = 8, BLOCK = 6, STEP = 2;
VECTORS
INLINE V fma(V a, V b, V c) { return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE V splat(float x) { return (V)_mm256_set1_ps(x); }
#include "native_kernels.h"
constexpr Kernels kernels = ALL;
}  // namespace avx2
#pragma GCC pop_options
#endif
namespace plain {
constexpr int VL = 4, BLOCK = 4, STEP = 2;
VECTORS
INLINE V fma(V a, V b, V c) { return a * b + c; }
INLINE V splat(float x) { return V{x, x, x, x}; }
#include "native_kernels.h"
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

// While it lives, numbers below the normal range count as 0 in this thread: they would be many times slower
struct Flush {
#ifdef PARL_X86
  unsigned before = _mm_getcsr();
  Flush() { _mm_setcsr(before | 0x8040); }
  ~Flush() { _mm_setcsr(before); }
#endif
};

// `panels`: take the weights from panels, in which they lie where they are `packed`
inline void run_forward(const Kernels& k, const Layer* layers, const Values* values, long n, const float* x, long rows,
                        bool panels, bool packed) {
  Flush flush;
  for (long i = 0; i < n; i++) {
    const Layer& l = layers[i];
    if (panels && !packed) k.pack(l.w, l.transposed, l.n_in, l.n_out, l.panels);
    if (l.b) std::memcpy(l.padded_bias, l.b, l.n_out * sizeof(float));
    k.forward(l, values[i], l.source < 0 ? x : values[l.source].y, stride(l.n_in), rows, panels);
  }
}

// `wanted`: of each layer, 1 where its dy has been given, else 0; dx: null, or for the gradient of the input
inline void run_backward(const Kernels& k, const Layer* layers, const Values* values, long n, const float* x, long n_in, float* dx,
                         long rows, char* wanted, float* gradient) {
  Flush flush;
  bool add = false;
  for (long i = n - 1; i >= 0; i--) {
    const Layer& l = layers[i];
    if (!wanted[i]) {  // as autograd has it: no gradient comes from there, whatever the weights are
      for (auto [at, size] : {std::pair(l.dw, l.n_in * l.n_out), {l.db, l.n_out}, {l.dscale, l.n_out}, {l.dshift, l.n_out}})
        if (gradient && at >= 0) std::memset(gradient + at, 0, size * sizeof(float));
    } else if (l.source < 0) {
      k.backward(l, values[i], x, stride(l.n_in), dx, add, rows, gradient);
      add = true;
    } else {
      k.backward(l, values[i], values[l.source].y, stride(l.n_in), values[l.source].dy, wanted[l.source], rows, gradient);
      wanted[l.source] = 1;
    }
  }
  if (dx && !add) std::memset(dx, 0, rows * stride(n_in) * sizeof(float));
}

inline double run_norm(const Kernels& k, float* const* parts, const long* sizes, long n) {
  Flush flush;
  double sum = 0.0;
  for (long i = 0; i < n; i++) sum += k.square_sum(parts[i], sizes[i]);
  return sum;
}

inline void run_scale(const Kernels& k, float* const* parts, const long* sizes, long n, float factor) {
  Flush flush;
  for (long i = 0; i < n; i++) k.scale(parts[i], sizes[i], factor);
}

// One step of each parameter, whose count of steps has been raised before
inline void run_adam(const Kernels& k, float* const* p, float* const* g, float* const* m, float* const* v,
                     float* const* steps, const long* sizes, long n, double lr, double beta1, double beta2, double eps,
                     double weight_decay) {
  Flush flush;
  for (long i = 0; i < n; i++) {
    const double root = std::sqrt(1.0 - std::pow(beta2, (double)*steps[i]));
    const Adam options = {(float)weight_decay, (float)beta1, (float)(1.0 - beta1), (float)beta2, (float)(1.0 - beta2),
                          (float)(lr / (1.0 - std::pow(beta1, (double)*steps[i])) * root), (float)(eps * root)};
    k.adam(p[i], g[i], m[i], v[i], sizes[i], options);
  }
}

}  // namespace native
