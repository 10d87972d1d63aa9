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

#define ALL {convolve, weight_gradient, channel_sums, normalise, normalise_gradient, relu_gradient}
#define KERNELS_FILE "conv_kernels.h"
#include "../parl_like/learning/levels.h"

}  // namespace conv
