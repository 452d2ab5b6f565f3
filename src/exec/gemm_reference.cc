#include "src/exec/gemm_reference.h"

#include <algorithm>
#include <vector>

#include "src/base/ceil_div_pod.h"
#include "src/base/half.h"

namespace overlace::exec {
namespace {

// Every element of c is one chain of multiply-adds over ascending k in one accumulator, whatever the blocks are: padded
// panels go through the same code as full ones, so blocks of rows, columns or k never change a bit.
constexpr int kTileM = 6;
constexpr int kTileN = 32;
constexpr int64_t kBlockM = 192;
constexpr int64_t kBlockK = 256;

/// acc (kTileM, kTileN) += a_panel (depth, kTileM) b_panel (depth, kTileN), as many columns at a time as leave the sums
/// in registers: two vectors of `bytes`.
// NOTE: at -O2 g++ unrolls no such loop unless told; the sums would then lie in memory: a third of the speed.
template <class T, int bytes>
[[gnu::always_inline]] inline void multiply_tile(const T* a_panel, const T* b_panel, int64_t depth, T* acc) {
  constexpr int kLanes = bytes / static_cast<int>(sizeof(T));
  constexpr int kVectors = 2;
  static_assert(kTileN % (kVectors * kLanes) == 0);
  typedef T Vector __attribute__((vector_size(bytes), aligned(sizeof(T)), may_alias));
  for (int first = 0; first < kTileN; first += kVectors * kLanes) {
    Vector sum[kTileM][kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kTileM; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j)
        sum[i][j] = *reinterpret_cast<const Vector*>(acc + i * kTileN + first + j * kLanes);
    }
    for (int64_t k = 0; k < depth; ++k) {
      Vector b[kVectors];
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j)
        b[j] = *reinterpret_cast<const Vector*>(b_panel + k * kTileN + first + j * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kTileM; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j) sum[i][j] += a_panel[k * kTileM + i] * b[j];
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kTileM; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) *reinterpret_cast<Vector*>(acc + i * kTileN + first + j * kLanes) = sum[i][j];
    }
  }
}

template <class T>
using MultiplyTile = void (*)(const T*, const T*, int64_t, T*);

template <class T>
void multiply_tile_portable(const T* a, const T* b, int64_t depth, T* acc) {
  multiply_tile<T, 16>(a, b, depth, acc);
}

#if defined(__x86_64__)
template <class T>
__attribute__((target("avx2,fma"))) void multiply_tile_avx2(const T* a, const T* b, int64_t depth, T* acc) {
  multiply_tile<T, 32>(a, b, depth, acc);
}
template <class T>
__attribute__((target("avx512f,fma"))) void multiply_tile_avx512(const T* a, const T* b, int64_t depth, T* acc) {
  multiply_tile<T, 64>(a, b, depth, acc);
}
#endif

template <class T>
MultiplyTile<T> select_tile() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return multiply_tile_avx512<T>;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return multiply_tile_avx2<T>;
#endif
  return multiply_tile_portable<T>;
}

/// Element i as T; T is float for everything but fp64.
template <class T>
T load(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::fp64:
      return static_cast<T>(static_cast<const double*>(data)[i]);
    case DType::fp32:
      return static_cast<T>(static_cast<const float*>(data)[i]);
    case DType::bf16:
      return static_cast<T>(base::bf16_to_float(static_cast<const uint16_t*>(data)[i]));
    case DType::e4m3:
      return static_cast<T>(base::e4m3_to_float(static_cast<const uint8_t*>(data)[i]));
    case DType::e5m2:
      return static_cast<T>(base::e5m2_to_float(static_cast<const uint8_t*>(data)[i]));
    default:
      return static_cast<T>(base::fp16_to_float(static_cast<const uint16_t*>(data)[i]));
  }
}

/// `count` elements from element `first` on, contiguous.
template <class T>
void load_row(const void* data, DType dtype, int64_t first, int64_t count, T* out) {
  if constexpr (sizeof(T) == sizeof(float)) {
    base::convert_to_float(static_cast<const char*>(data) + first * static_cast<int64_t>(dtype_bytes(dtype)), dtype,
                           out, count);
  } else {
    std::copy_n(static_cast<const double*>(data) + first, count, out);
  }
}

template <class T>
class Product {
 public:
  explicit Product(const GemmArgs& args)
      : g_(args),
        m_(args.c.dim(0)),
        n_(args.c.dim(1)),
        k_(args.a.dim(1)),
        panels_(base::ceil_div(n_, kTileN)),
        multiply_(select_tile<T>()) {
    const int64_t tiles = base::ceil_div(std::min(kBlockM, m_), kTileM);
    acc_.resize(static_cast<size_t>(tiles * panels_ * kTileM * kTileN));
    a_panels_.resize(static_cast<size_t>(tiles * kTileM * std::min(kBlockK, k_)));
    b_panel_.resize(static_cast<size_t>(kTileN * std::min(kBlockK, k_)));
    line_.resize(static_cast<size_t>(std::max<int64_t>(kBlockK, kTileN)));
  }

  void run() {
    for (int64_t m0 = 0; m0 < m_; m0 += kBlockM) {
      const int64_t rows = std::min(kBlockM, m_ - m0);
      const int64_t tiles = base::ceil_div(rows, kTileM);
      start(m0, rows, tiles);
      for (int64_t k0 = 0; k0 < k_; k0 += kBlockK) {
        const int64_t depth = std::min(kBlockK, k_ - k0);
        pack_a(m0, rows, k0, depth, tiles);
        for (int64_t panel = 0; panel < panels_; ++panel) {
          pack_b(panel, k0, depth);
          for (int64_t tile = 0; tile < tiles; ++tile) {
            multiply_(a_panels_.data() + tile * kTileM * depth, b_panel_.data(), depth, tile_acc(tile, panel));
          }
        }
      }
      finish(m0, rows);
    }
  }

 private:
  T* tile_acc(int64_t tile, int64_t panel) { return acc_.data() + (tile * panels_ + panel) * kTileM * kTileN; }
  T& acc_at(int64_t row, int64_t col) {
    return tile_acc(row / kTileM, col / kTileN)[row % kTileM * kTileN + col % kTileN];
  }

  void start(int64_t m0, int64_t rows, int64_t tiles) {
    std::fill_n(acc_.begin(), tiles * panels_ * kTileM * kTileN, T{0});
    if (!g_.accumulate || g_.a_scale.defined()) return;  // scales are of this product alone
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < n_; ++j) acc_at(i, j) = load<T>(g_.c.data, g_.c.dtype, (m0 + i) * g_.c.stride(0) + j);
    }
  }

  void pack_a(int64_t m0, int64_t rows, int64_t k0, int64_t depth, int64_t tiles) {
    std::fill_n(a_panels_.begin(), tiles * kTileM * depth, T{0});
    if (g_.a.stride(1) != 1 && k_ > 1) return pack_transposed_a(m0, rows, k0, depth);
    for (int64_t i = 0; i < rows; ++i) {
      load_row(g_.a.data, g_.a.dtype, (m0 + i) * g_.a.stride(0) + k0, depth, line_.data());
      T* panel = a_panels_.data() + i / kTileM * kTileM * depth + i % kTileM;
      for (int64_t k = 0; k < depth; ++k) panel[k * kTileM] = line_[static_cast<size_t>(k)];
    }
  }

  /// a stored (k, m).
  void pack_transposed_a(int64_t m0, int64_t rows, int64_t k0, int64_t depth) {
    for (int64_t k = 0; k < depth; ++k) {
      load_row(g_.a.data, g_.a.dtype, (k0 + k) * g_.a.stride(1) + m0, rows, line_.data());
      for (int64_t i = 0; i < rows; ++i)
        a_panels_[static_cast<size_t>((i / kTileM * depth + k) * kTileM + i % kTileM)] = line_[static_cast<size_t>(i)];
    }
  }

  void pack_b(int64_t panel, int64_t k0, int64_t depth) {
    const int64_t n0 = panel * kTileN, cols = std::min<int64_t>(kTileN, n_ - n0);
    if (cols < kTileN) std::fill(b_panel_.begin(), b_panel_.end(), T{0});
    if (g_.b.stride(1) == 1 || g_.b.stride(0) != 1) {
      const int64_t pitch = g_.b.stride(0), step = g_.b.stride(1);
      for (int64_t k = 0; k < depth; ++k) {
        T* out = b_panel_.data() + k * kTileN;
        if (step == 1) {
          load_row(g_.b.data, g_.b.dtype, (k0 + k) * pitch + n0, cols, out);
        } else {
          for (int64_t j = 0; j < cols; ++j)
            out[j] = load<T>(g_.b.data, g_.b.dtype, (k0 + k) * pitch + (n0 + j) * step);
        }
      }
      return;
    }
    for (int64_t j = 0; j < cols; ++j) {
      load_row(g_.b.data, g_.b.dtype, (n0 + j) * g_.b.stride(1) + k0, depth, line_.data());
      for (int64_t k = 0; k < depth; ++k) b_panel_[static_cast<size_t>(k * kTileN + j)] = line_[static_cast<size_t>(k)];
    }
  }

  /// Products of three fp32 numbers, of which fp64 rounds what 24 bits do not see.
  void scale(T* sum, int64_t row, int64_t n0, int64_t cols) {
    const TensorView &a = g_.a_scale, &b = g_.b_scale;
    const double of_row = load<double>(a.data, a.dtype, a.ndim == 2 ? row * a.stride(0) : 0);
    for (int64_t j = 0; j < cols; ++j) {
      const double of_column = load<double>(b.data, b.dtype, b.ndim == 2 ? (n0 + j) * b.stride(1) : 0);
      sum[j] = static_cast<T>(static_cast<double>(sum[j]) * of_row * of_column);
      if (g_.accumulate) sum[j] += load<T>(g_.c.data, g_.c.dtype, row * g_.c.stride(0) + n0 + j);
    }
  }

  void finish(int64_t m0, int64_t rows) {
    const int64_t c_bytes = static_cast<int64_t>(dtype_bytes(g_.c.dtype));
    for (int64_t i = 0; i < rows; ++i) {
      char* row = static_cast<char*>(g_.c.data) + (m0 + i) * g_.c.stride(0) * c_bytes;
      for (int64_t n0 = 0; n0 < n_; n0 += kTileN) {
        const int64_t cols = std::min<int64_t>(kTileN, n_ - n0);
        T* sum = &acc_at(i, n0);
        if (g_.a_scale.defined()) scale(sum, m0 + i, n0, cols);
        if (g_.bias.defined()) {
          const int64_t step = g_.bias.stride(0);
          for (int64_t j = 0; j < cols; ++j) sum[j] += load<T>(g_.bias.data, g_.bias.dtype, (n0 + j) * step);
        }
        if constexpr (sizeof(T) == sizeof(float)) {
          base::convert_from_float(sum, row + n0 * c_bytes, g_.c.dtype, cols);
        } else {
          for (int64_t j = 0; j < cols; ++j) base::store_element(row, g_.c.dtype, n0 + j, sum[j]);
        }
      }
    }
  }

  const GemmArgs& g_;
  int64_t m_, n_, k_, panels_;
  MultiplyTile<T> multiply_;
  std::vector<T> acc_;       // (tiles of the row block, panels_, kTileM, kTileN)
  std::vector<T> a_panels_;  // (tiles, depth, kTileM)
  std::vector<T> b_panel_;   // (depth, kTileN)
  std::vector<T> line_;
};

}  // namespace

void reference_gemm(const GemmArgs& args) {
  if (args.a.dtype == DType::fp64) {
    Product<double>(args).run();
  } else {
    Product<float>(args).run();
  }
}

}  // namespace overlace::exec
