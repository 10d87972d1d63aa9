// Dense layers for one instruction set. levels.h includes this once for each, with
//   VL      numbers in a vector, a divisor of 16
//   V, I    vectors of float and of int32_t
//   fma(a, b, c) = a b + c, with one rounding where the processor has that; splat(x): a vector of x
//
// Every number of a product is one sum over `depth` in order, one fma after the other; vectors run over columns alone. So it has
// the same bits whatever VL, BLOCK and the number of rows are.

// Rows that one pass over the weights serves, and that a shorter rest serves
constexpr int BLOCK = VL == 16 ? 12 : VL == 8 ? 6 : 4, STEP = VL == 16 ? 4 : 2;
constexpr long PANEL = 2 * VL, PIECE = 128;

INLINE V load(const float* p) { return *(const V*)p; }
INLINE void store(float* p, V x) { *(V*)p = x; }
INLINE V pick(I where, V a, V b) { return (V)((where & (I)a) | (~where & (I)b)); }

// exp(z) − 1 for z in [−87, 88]: z = n ln 2 + r, exp(z) − 1 = 2ⁿ (exp(r) − 1) + 2ⁿ − 1. NaN stays NaN.
INLINE V expm1(V z) {
  const V magic = splat(12582912.0f);  // 1.5 · 2²³: what is added to it is rounded to an integer, in its last bits
  const V shifted = fma(z, splat(1.44269504f), magic), n = shifted - magic;
  const V r = fma(n, splat(-1.42860677e-6f), fma(n, splat(-0.693145752f), z));
  V q = splat(1.0f / 5040.0f);
  q = fma(q, r, splat(1.0f / 720.0f));
  q = fma(q, r, splat(1.0f / 120.0f));
  q = fma(q, r, splat(1.0f / 24.0f));
  q = fma(q, r, splat(1.0f / 6.0f));
  q = fma(q, r, splat(0.5f));
  const V p = fma(r * r, q, r);
  const V power = (V)((((I)shifted - (I)magic) + 127) << 23);
  return fma(power, p, power - splat(1.0f));
}

INLINE V tanh_of(V x) {
  const I sign = (I)x & (I)splat(-0.0f);
  V size = (V)((I)x ^ sign);
  size = pick(size > splat(10.0f), splat(10.0f), size);
  const V e = expm1(size + size);
  return (V)((I)(e / (e + splat(2.0f))) | sign);
}

INLINE V sigmoid_of(V x) {
  V z = -x;
  z = pick(z > splat(88.0f), splat(88.0f), z);
  z = pick(z < splat(-87.0f), splat(-87.0f), z);
  return splat(1.0f) / (splat(2.0f) + expm1(z));
}

// c[r, 0:cols] = (bias, c itself, or 0) + Σ_p a[r ra + p pa] · b[p ldb + 0:C VL], for R rows
template <int R, int C>
INLINE void tile(const float* a, long ra, long pa, const float* b, long ldb, long depth, const float* bias, bool add, float* c,
                 long ldc, long cols) {
  const bool whole = cols >= C * VL;
  V sum[R][C];  // in registers: no address of it is taken
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    V part[C];
    for (int k = 0; k < C; k++) part[k] = bias ? load(bias + k * VL) : add && whole ? load(c + r * ldc + k * VL) : splat(0.0f);
    if (add && !whole) std::memcpy(part, c + r * ldc, cols * sizeof(float));
    for (int k = 0; k < C; k++) sum[r][k] = part[k];
  }
  for (long p = 0; p < depth; p++) {
    V row[C];
    for (int k = 0; k < C; k++) row[k] = load(b + p * ldb + k * VL);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const V one = splat(a[r * ra + p * pa]);
      for (int k = 0; k < C; k++) sum[r][k] = fma(one, row[k], sum[r][k]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    V part[C];
    for (int k = 0; k < C; k++) part[k] = sum[r][k];
    if (whole)
      for (int k = 0; k < C; k++) store(c + r * ldc + k * VL, part[k]);
    else
      std::memcpy(c + r * ldc, part, cols * sizeof(float));
  }
}

template <int C>
INLINE void columns(const float* a, long ra, long pa, const float* b, long ldb, long rows, long depth, const float* bias,
                    bool add, float* c, long ldc, long cols) {
  long r = 0;
  for (; r + BLOCK <= rows; r += BLOCK) tile<BLOCK, C>(a + r * ra, ra, pa, b, ldb, depth, bias, add, c + r * ldc, ldc, cols);
  for (; r + STEP <= rows; r += STEP) tile<STEP, C>(a + r * ra, ra, pa, b, ldb, depth, bias, add, c + r * ldc, ldc, cols);
  for (; r < rows; r++) tile<1, C>(a + r * ra, ra, pa, b, ldb, depth, bias, add, c + r * ldc, ldc, cols);
}

// Transpose VL × VL numbers: blocks of half the size change places, then those inside them.
template <int HALF>
INLINE void turn(V* m) {
  I low, high;
  for (int e = 0; e < VL; e++) low[e] = e & HALF ? VL + e - HALF : e, high[e] = e & HALF ? VL + e : e + HALF;
#pragma GCC unroll 16
  for (int i = 0; i < VL; i++)
    if (!(i & HALF)) {
      const V a = m[i], b = m[i + HALF];
      m[i] = __builtin_shuffle(a, b, low), m[i + HALF] = __builtin_shuffle(a, b, high);
    }
  if constexpr (HALF > 1) turn<HALF / 2>(m);
}

// Rows p0 to p1 and columns j to j + width of b [depth, cols] or, with `turned`, of its transpose, into `to` [p1 − p0, width], which
// is filled up with zeros
INLINE void pack_piece(const float* b, bool turned, long depth, long cols, long j, long width, long p0, long p1, float* to) {
  const long have = std::max<long>(std::min(cols - j, width), 0);
  if (have < width) std::memset(to, 0, (p1 - p0) * width * sizeof(float));
  if (!turned) {
    for (long p = p0; p < p1; p++) std::memcpy(to + (p - p0) * width, b + p * cols + j, have * sizeof(float));
    return;
  }
  long whole = 0;
  for (; whole + VL <= have; whole += VL) {
    long p = p0;
    for (; p + VL <= p1; p += VL) {
      V m[VL];
#pragma GCC unroll 16
      for (int i = 0; i < VL; i++) m[i] = load(b + (j + whole + i) * depth + p);
      turn<VL / 2>(m);
#pragma GCC unroll 16
      for (int i = 0; i < VL; i++) store(to + (p - p0 + i) * width + whole, m[i]);
    }
    for (long k = whole; k < whole + VL; k++)
      for (long r = p; r < p1; r++) to[(r - p0) * width + k] = b[(j + k) * depth + r];
  }
  for (long k = whole; k < have; k++)
    for (long p = p0; p < p1; p++) to[(p - p0) * width + k] = b[(j + k) * depth + p];
}

// c [rows, cols] = (bias, c itself, or 0) + a · b, where b [depth, cols] has rows of `ldb` numbers, lies in panels of PANEL columns
// (PANELS), or is a weight matrix [depth, cols], or the transpose of one (TURNED), pieces of which are packed as they come.
// a, b in rows or panels, and what is added are padded to 16 columns with zeros. With `exact` nothing is written behind the columns
// of c.
static void product(const float* a, long ra, long pa, const float* b, long ldb, long rows, long cols, long depth,
                    const float* bias, bool add, float* c, long ldc, bool exact) {
  alignas(64) float piece[PIECE * PANEL];
  const long padded = pad(cols);
  for (long j = 0; j < (exact ? cols : padded); j += PANEL) {
    const long width = std::min<long>(PANEL, padded - j), have = exact ? std::min(cols - j, width) : width;
    // In pieces of the sum that stay in the first cache; a piece goes on from the sum before it, so its bits are the same.
    for (long p = 0; p == 0 || p < depth; p += PIECE) {
      const long some = std::min(PIECE, depth - p), ld = ldb > 0 ? ldb : width;
      const float* from = ldb > 0 ? b + j + p * ldb : ldb == PANELS ? b + j * depth + p * width : piece;
      if (from == piece) pack_piece(b, ldb == TURNED, depth, cols, j, width, p, p + some, piece);
      const float* first = bias && !p ? bias + j : nullptr;
      if (width == PANEL)
        columns<PANEL / VL>(a + p * pa, ra, pa, from, ld, rows, some, first, add || p, c + j, ldc, have);
      else
        columns<1>(a + p * pa, ra, pa, from, ld, rows, some, first, add || p, c + j, ldc, have);
    }
  }
}

// b [depth, cols], or with `turned` its transpose, into panels of PANEL columns, padded with zeros
static void pack(const float* b, bool turned, long depth, long cols, float* panels) {
  for (long j = 0, padded = pad(cols); j < padded; j += PANEL)
    pack_piece(b, turned, depth, cols, j, std::min<long>(PANEL, padded - j), 0, depth, panels + j * depth);
}

// sums over a row's `n` numbers of x, or of x y: 16 partial sums, then these in pairs
INLINE float row_sum(const float* x, const float* y, long n) {
  V part[16 / VL];
  for (int k = 0; k < 16 / VL; k++) part[k] = splat(0.0f);
  for (long j = 0; j < pad(n); j += 16)
    for (int k = 0; k < 16 / VL; k++) {
      const V one = load(x + j + k * VL);
      part[k] = y ? fma(one, load(y + j + k * VL), part[k]) : part[k] + one;
    }
  float sum[16];
  for (int k = 0; k < 16 / VL; k++) store(sum + k * VL, part[k]);
  for (int half = 8; half; half /= 2)
    for (int k = 0; k < half; k++) sum[k] += sum[k + half];
  return sum[0];
}

static void forward_layer(const Layer& l, const Values& v, const float* x, long ldx, long rows, bool packed) {
  const long ld = stride(l.n_out), how = packed ? PANELS : l.transposed ? TURNED : WEIGHTS;
  product(x, ldx, 1, packed ? l.panels : l.w, how, rows, l.n_out, l.n_in, l.padded_bias, false, v.y, ld, false);
  if (l.scale)
    for (long r = 0; r < rows; r++) {
      float* y = v.y + r * ld;
      float* h = v.h + r * ld;
      const V mean = splat(row_sum(y, nullptr, l.n_out) / l.n_out);
      for (long j = 0; j < ld; j += VL) store(h + j, load(y + j) - mean);
      std::memset(h + l.n_out, 0, (ld - l.n_out) * sizeof(float));
      const float slope = 1.0f / std::sqrt(row_sum(h, h, l.n_out) / l.n_out + 1e-5f);
      v.slope[r] = slope;
      for (long j = 0; j < l.n_out; j++) {
        h[j] *= slope;
        y[j] = h[j] * l.scale[j] + l.shift[j];
      }
    }
  if (l.activation == SILU) std::memcpy(v.z, v.y, rows * ld * sizeof(float));
  for (long i = 0; i < rows * ld; i += VL) {
    const V y = load(v.y + i);
    if (l.activation == TANH) store(v.y + i, tanh_of(y));
    if (l.activation == RELU) store(v.y + i, pick(y < splat(0.0f), splat(0.0f), y));
    if (l.activation == SILU) store(v.y + i, y * sigmoid_of(y));
  }
}

// dy of the layer is what comes after it wants; afterwards it is that of the products. x, dx: the layer's input, and where its
// gradient goes (null: nowhere), to what is there with `add`. gradient: where those of the parameters go (null: nowhere).
static void backward_layer(const Layer& l, const Values& v, const float* x, long ldx, float* dx, bool add, long rows,
                           float* gradient) {
  const long ld = stride(l.n_out);
  const V one = splat(1.0f);
  float* d = v.dy;
  for (long i = 0; i < rows * ld; i += VL) {
    const V dy = load(d + i), y = load(v.y + i);
    if (l.activation == TANH) store(d + i, dy * fma(-y, y, one));
    if (l.activation == RELU) store(d + i, pick(y <= splat(0.0f), splat(0.0f), dy));
    if (l.activation == SILU) {
      const V z = load(v.z + i), s = sigmoid_of(z);
      store(d + i, dy * (s * fma(z, one - s, one)));
    }
  }
  if (l.scale) {
    float *dscale = gradient + l.dscale, *dshift = gradient + l.dshift;
    if (gradient) {
      std::memset(dscale, 0, l.n_out * sizeof(float));
      std::memset(dshift, 0, l.n_out * sizeof(float));
    }
    for (long r = 0; r < rows; r++) {
      float* row = d + r * ld;
      const float* h = v.h + r * ld;
      if (gradient)
        for (long j = 0; j < l.n_out; j++) {
          dshift[j] += row[j];
          dscale[j] += row[j] * h[j];
        }
      for (long j = 0; j < l.n_out; j++) row[j] *= l.scale[j];
      const float mean = row_sum(row, nullptr, l.n_out) / l.n_out, along = row_sum(row, h, l.n_out) / l.n_out;
      for (long j = 0; j < l.n_out; j++) row[j] = v.slope[r] * (row[j] - mean - h[j] * along);
    }
  }
  const bool across = l.transposed || l.n_out == 1;  // one column lies as a row does, and vectors run along that
  if (gradient && across) product(d, 1, ld, x, ldx, l.n_out, l.n_in, rows, nullptr, false, gradient + l.dw, l.n_in, true);
  if (gradient && !across) product(x, 1, ldx, d, ld, l.n_in, l.n_out, rows, nullptr, false, gradient + l.dw, l.n_out, true);
  if (gradient && l.db >= 0)
    for (long j = 0; j < ld; j += VL) {
      V sum = splat(0.0f);
      for (long r = 0; r < rows; r++) sum += load(d + r * ld + j);
      std::memcpy(gradient + l.db + j, &sum, std::min<long>(VL, std::max<long>(l.n_out - j, 0)) * sizeof(float));
    }
  if (!dx) return;
  product(d, ld, 1, l.w, l.transposed ? WEIGHTS : TURNED, rows, l.n_in, l.n_out, nullptr, add, dx, ldx, false);
}

static double square_sum(const float* x, long n) {  // 16 partial sums in double precision
  double part[16] = {};
  long i = 0;
  for (; i + 16 <= n; i += 16)
    for (int k = 0; k < 16; k++) part[k] += (double)x[i + k] * x[i + k];
  for (; i < n; i++) part[i % 16] += (double)x[i] * x[i];
  for (int half = 8; half; half /= 2)
    for (int k = 0; k < half; k++) part[k] += part[k + half];
  return part[0];
}

static void scale(float* x, long n, float factor) {
  for (long i = 0; i < n; i++) x[i] *= factor;
}

static void adam(float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v, long n,
                 const Adam& o) {
  const Adam a = o;
  for (long i = 0; i < n; i++) {
    const float d = g[i] + a.weight_decay * p[i];
    m[i] = a.old_moment * m[i] + a.new_moment * d;  // so that it fades to 0
    v[i] = a.old_square * v[i] + a.new_square * (d * d);
    p[i] -= a.step_size * (m[i] / (std::sqrt(v[i]) + a.eps));  // step size and ε have the factor √(1 − β₂ᵗ)
  }
}
