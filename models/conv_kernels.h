// Convolutions of small images for one instruction set. levels.h includes this once for each, with
//   VL      numbers in a vector, a divisor of 16
//   V, I    vectors of float and of int32_t
//   fma(a, b, c) = a b + c, with one rounding where the processor has that; splat(x): a vector of x
//
// Images lie as [C][H][W][N], N a multiple of 16: a vector holds one pixel of VL images, so channels and pixels need no padding.

INLINE V load(const float* p) { return *(const V*)p; }
INLINE void store(float* p, V x) { *(V*)p = x; }
INLINE V relu_of(V x) { return (V)((I)x & ~(x < splat(0.0f))); }  // NaN stays NaN
INLINE V past(V g, V y) { return (V)((I)g & ~(y <= splat(0.0f))); }  // through a relu that gave y; NaN lets it pass, as in torch
INLINE float sum_of(V x) {
  float sum = 0.0f;
  for (int k = 0; k < VL; k++) sum += x[k];
  return sum;
}

// CO channels of PX pixels of a row, of VL images
template <int K, int CO, int PX>
INLINE void pixels(const Shape& s, const float* x, const float* w, const float* bias, const float* add, bool relu, float* out,
                   long row, long col) {
  V sum[CO][PX];
  for (int c = 0; c < CO; c++)
    for (int p = 0; p < PX; p++) sum[c][p] = splat(bias ? bias[c] : 0.0f);
  const long plane = s.height * s.width * s.n, half = K / 2;
  const long from = std::max<long>(half - row, 0), to = std::min<long>(K, s.height + half - row);
  for (long i = 0; i < s.in; i++)
    for (long ky = from; ky < to; ky++) {
      const float* line = x + i * plane + ((row + ky - half) * s.width + col - half) * s.n;
      V seen[PX + K - 1];
#pragma GCC unroll 8
      for (int p = 0; p < PX + K - 1; p++) {
        const bool inside = (p >= K / 2 || col + p >= half) && (p < PX + K / 2 || col + p < s.width + half);
        seen[p] = inside ? load(line + p * s.n) : splat(0.0f);
      }
      const float* weights = w + (i * K + ky) * K;
#pragma GCC unroll 4
      for (int c = 0; c < CO; c++)
#pragma GCC unroll 3
        for (int kx = 0; kx < K; kx++) {
          const V one = splat(weights[c * s.in * K * K + kx]);
#pragma GCC unroll 4
          for (int p = 0; p < PX; p++) sum[c][p] = fma(one, seen[p + kx], sum[c][p]);
        }
    }
  for (int c = 0; c < CO; c++)
    for (int p = 0; p < PX; p++) {
      const long at = c * plane + (row * s.width + col + p) * s.n;
      V y = add ? sum[c][p] + load(add + at) : sum[c][p];
      store(out + at, relu ? relu_of(y) : y);
    }
}

template <int K, int CO>
INLINE void channels(const Shape& s, const float* x, const float* w, const float* bias, const float* add, bool relu, float* out) {
  for (long row = 0; row < s.height; row++) {
    long col = 0;
    for (; col + 3 <= s.width; col += 3) pixels<K, CO, 3>(s, x, w, bias, add, relu, out, row, col);
    for (; col < s.width; col++) pixels<K, CO, 1>(s, x, w, bias, add, relu, out, row, col);
  }
}

template <int K>
INLINE void images(const Shape& s, const float* x, const float* w, const float* bias, const float* add, bool relu, float* out) {
  const long plane = s.height * s.width * s.n, kernel = s.in * K * K;
  for (long n = 0; n < s.n; n += VL) {
    long c = 0;
    for (; c + 4 <= s.out; c += 4)
      channels<K, 4>(s, x + n, w + c * kernel, bias ? bias + c : nullptr, add ? add + c * plane + n : nullptr, relu,
                     out + c * plane + n);
    for (; c < s.out; c++)
      channels<K, 1>(s, x + n, w + c * kernel, bias ? bias + c : nullptr, add ? add + c * plane + n : nullptr, relu,
                     out + c * plane + n);
  }
}

// out = [relu](x ∗ w [+ bias] [+ add]), w [out][in][K][K]
static void convolve(const Shape& s, const float* x, const float* w, const float* bias, const float* add, bool relu, float* out) {
  s.k == 3 ? images<3>(s, x, w, bias, add, relu, out) : images<1>(s, x, w, bias, add, relu, out);
}

// Gradients of the weights of CO channels of the output and one of the input: products of each pixel of g with those of x around
// it, whose three columns move along the row
template <int K, int CO>
INLINE void weights_of(const Shape& s, const float* x, const float* g, float* dw) {
  const long plane = s.height * s.width * s.n;
  V sum[CO][K][K];
  for (int c = 0; c < CO; c++)
    for (int k = 0; k < K * K; k++) sum[c][k / K][k % K] = splat(0.0f);
  for (long n = 0; n < s.n; n += VL)
    for (long row = 0; row < s.height; row++) {
      const float* own = g + row * s.width * s.n + n;
      const float* lines[K];
      bool inside[K];
      V seen[K][K];
      for (int k = 0; k < K; k++) {
        const long y = row + k - K / 2;
        inside[k] = y >= 0 && y < s.height;
        lines[k] = x + (inside[k] ? y : row) * s.width * s.n + n;
        for (int l = 0; l < K / 2; l++) seen[k][l] = splat(0.0f);
        if (K > 1) seen[k][1 % K] = inside[k] ? load(lines[k]) : splat(0.0f);
      }
      for (long col = 0; col < s.width; col++) {
        const long next = col + K / 2;
#pragma GCC unroll 3
        for (int k = 0; k < K; k++) seen[k][K - 1] = inside[k] && next < s.width ? load(lines[k] + next * s.n) : splat(0.0f);
#pragma GCC unroll 4
        for (int c = 0; c < CO; c++) {
          const V d = load(own + c * plane + col * s.n);
#pragma GCC unroll 3
          for (int k = 0; k < K; k++)
#pragma GCC unroll 3
            for (int l = 0; l < K; l++) sum[c][k][l] = fma(d, seen[k][l], sum[c][k][l]);
        }
#pragma GCC unroll 3
        for (int k = 0; k < K; k++)
#pragma GCC unroll 2
          for (int l = 0; l < K - 1; l++) seen[k][l] = seen[k][l + 1];
      }
    }
  for (int c = 0; c < CO; c++)
    for (int k = 0; k < K * K; k++) dw[c * s.in * K * K + k] = sum_of(sum[c][k / K][k % K]);
}

template <int K>
INLINE void weights(const Shape& s, const float* x, const float* g, float* dw) {
  const long plane = s.height * s.width * s.n;
  for (long i = 0; i < s.in; i++) {
    long c = 0;
    for (; c + 2 <= s.out; c += 2) weights_of<K, 2>(s, x + i * plane, g + c * plane, dw + (c * s.in + i) * K * K);
    for (; c < s.out; c++) weights_of<K, 1>(s, x + i * plane, g + c * plane, dw + (c * s.in + i) * K * K);
  }
}

// dw [out][in][K][K] of out = x ∗ w, from the gradient g of out
static void weight_gradient(const Shape& s, const float* x, const float* g, float* dw) {
  s.k == 3 ? weights<3>(s, x, g, dw) : weights<1>(s, x, g, dw);
}

// Sums over the numbers of each channel
static void channel_sums(const float* x, long channels, long numbers, float* out) {
  for (long c = 0; c < channels; c++) {
    V sum = splat(0.0f);
    for (long i = 0; i < numbers; i += VL) sum += load(x + c * numbers + i);
    out[c] = sum_of(sum);
  }
}

// y = [relu]((x − mean) slope scale + shift [+ add]), mean and slope those of each channel; `variance` is divided by n
static void normalise(const float* x, long channels, long numbers, float eps, const float* scale, const float* shift,
                      const float* add, bool relu, float* mean, float* variance, float* slope, float* y) {
  for (long c = 0; c < channels; c++) {
    const float* in = x + c * numbers;
    V sum = splat(0.0f), squares = splat(0.0f);
    for (long i = 0; i < numbers; i += VL) sum += load(in + i);
    mean[c] = sum_of(sum) / numbers;
    for (long i = 0; i < numbers; i += VL) {
      const V d = load(in + i) - splat(mean[c]);
      squares = fma(d, d, squares);
    }
    variance[c] = sum_of(squares) / numbers;
    slope[c] = 1.0f / std::sqrt(variance[c] + eps);
    const V factor = splat(slope[c] * scale[c]), rest = splat(shift[c]), middle = splat(mean[c]);
    for (long i = 0; i < numbers; i += VL) {
      V value = fma(load(in + i) - middle, factor, rest);
      if (add) value += load(add + c * numbers + i);
      store(y + c * numbers + i, relu ? relu_of(value) : value);
    }
  }
}

// g, the gradient of y, becomes that of x. With `after`, which a relu gave, g goes through that first.
static void normalise_gradient(float* g, const float* x, const float* after, long channels, long numbers, const float* scale,
                               const float* mean, const float* slope, float* dscale, float* dshift) {
  for (long c = 0; c < channels; c++) {
    float* d = g + c * numbers;
    const float* in = x + c * numbers;
    const V middle = splat(mean[c]), steep = splat(slope[c]);
    V all = splat(0.0f), along = splat(0.0f);
    for (long i = 0; i < numbers; i += VL) {
      V one = load(d + i);
      if (after) {
        one = past(one, load(after + c * numbers + i));
        store(d + i, one);
      }
      all += one;
      along = fma(one, (load(in + i) - middle) * steep, along);
    }
    dshift[c] = sum_of(all);
    dscale[c] = sum_of(along);
    const V factor = splat(scale[c] * slope[c]), part = splat(dshift[c] / numbers), slant = splat(dscale[c] / numbers);
    for (long i = 0; i < numbers; i += VL)
      store(d + i, factor * (load(d + i) - part - (load(in + i) - middle) * steep * slant));
  }
}

// g before a relu that gave y
static void relu_gradient(const float* g, const float* y, long numbers, float* out) {
  for (long i = 0; i < numbers; i += VL) store(out + i, past(load(g + i), load(y + i)));
}
