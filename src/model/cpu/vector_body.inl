// Included by vector_math.cc once per instruction set, which sets OVERLACE_TARGET; no include guard. Vectors of 32
// bytes are one register with AVX2 and two with SSE2.

using Float8 = float __attribute__((vector_size(32)));
using Int8 = int32_t __attribute__((vector_size(32)));
using Double4 = double __attribute__((vector_size(32)));

/// x becomes exp(x), within 2 ulp for -87 <= x <= 88; beyond, the value at that end.
OVERLACE_TARGET static inline void exp8(Float8* x) {
  const Float8 zero{};
  const Float8 low = zero - 87.0f, high = zero + 88.0f;
  Float8 v = *x;
  v = v < low ? low : v;
  v = v > high ? high : v;
  // exp(v) = 2^n exp(r): adding 1.5 * 2^23 leaves the nearest integer n of v / ln 2 in the low bits.
  constexpr float kShift = 12582912.0f;
  const Float8 shifted = v * 1.44269504088896341f + kShift;
  const Float8 n = shifted - kShift;
  const Float8 r = (v - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  Float8 p = r * 1.9875691500e-4f + 1.3981999507e-3f;            // minimax on |r| <= ln 2 / 2
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Int8 exponent = (__builtin_bit_cast(Int8, shifted) << 23) + 0x3F800000;
  *x = p * __builtin_bit_cast(Float8, exponent);
}

OVERLACE_TARGET static inline void load8(const float* x, int64_t n, float fill, Float8* v) {
  if (n >= 8) {
    std::memcpy(v, x, sizeof *v);
    return;
  }
  float padded[8] = {fill, fill, fill, fill, fill, fill, fill, fill};
  std::copy_n(x, n, padded);
  std::memcpy(v, padded, sizeof *v);
}

OVERLACE_TARGET static inline void store8(const Float8& v, float* x, int64_t n) {
  if (n >= 8) {  // apart, so that the usual size is a constant
    std::memcpy(x, &v, sizeof v);
  } else {
    std::memcpy(x, &v, static_cast<size_t>(n) * sizeof(float));
  }
}

OVERLACE_TARGET static float largest(const float* x, int64_t n) {
  Float8 all, v;
  load8(x, n, x[0], &all);
  for (int64_t i = 8; i < n; i += 8) {
    load8(x + i, n - i, x[0], &v);
    all = v > all ? v : all;
  }
  float result = all[0];
  for (int lane = 1; lane < 8; ++lane) result = std::max(result, all[lane]);
  return result;
}

OVERLACE_TARGET static double exp_sum(float* x, int64_t n, float shift) {
  constexpr int64_t kRun = 256;  // added in fp32, the runs in fp64
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kRun) {
    const int64_t end = std::min(n, begin + kRun);
    Float8 run{}, v;
    for (int64_t i = begin; i < end; i += 8) {
      load8(x + i, end - i, shift - 1000.0f, &v);
      v -= shift;
      exp8(&v);
      store8(v, x + i, end - i);
      run += v;  // a padded lane adds exp(-87), far below a rounding of the sum, which is >= 1
    }
    for (int lane = 0; lane < 8; ++lane) sum += static_cast<double>(run[lane]);
  }
  return sum;
}

OVERLACE_TARGET static void silu(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += 8) {
    Float8 v;
    load8(x + i, n - i, 0, &v);
    Float8 e = -v;
    exp8(&e);
    v = v / (e + 1.0f);
    store8(v, x + i, n - i);
  }
}

OVERLACE_TARGET static void gelu_tanh(float* x, int64_t n) {
  // 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u)), without the cancellation for negative x.
  constexpr float kTwiceRoot = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  for (int64_t i = 0; i < n; i += 8) {
    Float8 v;
    load8(x + i, n - i, 0, &v);
    Float8 e = (v + v * v * v * 0.044715f) * -kTwiceRoot;
    exp8(&e);
    v = v / (e + 1.0f);
    store8(v, x + i, n - i);
  }
}

/// c (rows <= 4, 8) += a (rows, depth) times packed w (depth, 8).
OVERLACE_TARGET static void fp64_block(const Fp64Block& b) {
  Double4 sum[4][2] = {};
  const double* a[4];
  for (int i = 0; i < 4; ++i) a[i] = b.a + std::min<int64_t>(i, b.rows - 1) * b.a_pitch;
  for (int64_t p = 0; p < b.depth; ++p) {
    Double4 w0, w1;
    std::memcpy(&w0, b.w + p * 8, sizeof w0);
    std::memcpy(&w1, b.w + p * 8 + 4, sizeof w1);
    for (int i = 0; i < 4; ++i) {
      sum[i][0] += w0 * a[i][p];
      sum[i][1] += w1 * a[i][p];
    }
  }
  for (int64_t i = 0; i < b.rows; ++i)
    for (int64_t j = 0; j < b.cols; ++j) b.c[i * b.c_pitch + j] += sum[i][j / 4][j % 4];
}

constexpr VectorMath kFunctions = {largest, exp_sum, silu, gelu_tanh, fp64_block};
