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

#define ALL {forward_layer, backward_layer, pack, square_sum, scale, adam}
#define KERNELS_FILE "native_kernels.h"
#include "levels.h"

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
