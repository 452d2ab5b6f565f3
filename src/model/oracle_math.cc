#include "src/model/oracle_math.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/ceil_div_pod.h"
#include "src/base/half.h"
#include "src/model/cpu/vector_math.h"

namespace overlace::model {
namespace {

using base::Status;

constexpr int64_t kRows = 4, kCols = 8;  // of c kept in registers
constexpr int64_t kDepth = 256;          // of k per pass: packed columns of w stay in the first-level cache
constexpr int64_t kPanelRows = 64;

/// Rows [begin, end) of c.
void gemm_rows(const double* a, const double* w, double* c, int64_t begin, int64_t end, int64_t n, int64_t k) {
  const cpu::VectorMath& math = cpu::vector_math();
  std::vector<double> packed(static_cast<size_t>(kDepth * kCols));
  std::fill(c + begin * n, c + end * n, 0.0);
  for (int64_t p0 = 0; p0 < k; p0 += kDepth) {
    const int64_t depth = std::min(kDepth, k - p0);
    for (int64_t j0 = 0; j0 < n; j0 += kCols) {
      const int64_t cols = std::min(kCols, n - j0);
      for (int64_t j = 0; j < kCols; ++j)
        for (int64_t p = 0; p < depth; ++p)
          packed[static_cast<size_t>(p * kCols + j)] = j < cols ? w[(j0 + j) * k + p0 + p] : 0.0;
      for (int64_t i = begin; i < end; i += kRows)
        math.fp64_block({a + i * k + p0, packed.data(), c + i * n + j0, k, n, std::min(kRows, end - i), cols, depth});
    }
  }
}

class CpuOracleMath final : public OracleMath {
 public:
  CpuOracleMath(int threads, std::stop_token stop) : threads_(std::max(threads, 1)), stop_(std::move(stop)) {}

  Status gemm(const double* a, const void* w, DType w_dtype, double* c, int64_t m, int64_t n, int64_t k) override {
    const double* const exact = in_fp64(w, w_dtype, n * k);
    parallel_for(base::ceil_div(m, kPanelRows), threads_, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end && !stop_.stop_requested(); ++panel)
        gemm_rows(a, exact, c, panel * kPanelRows, std::min(m, (panel + 1) * kPanelRows), n, k);
    });
    return end();
  }

  Status attention(const Attention& x) override {
    parallel_for(x.tokens, threads_, [&](int64_t begin, int64_t end) {
      std::vector<double> p(static_cast<size_t>(x.length));
      for (int64_t token = begin; token < end && !stop_.stop_requested(); ++token)
        for (int64_t head = 0; head < x.heads; ++head) one_query(x, token, head, p.data());
    });
    return end();
  }

 private:
  Status end() const {
    return stop_.stop_requested() ? base::error(Errc::aborted, "oracle: stopped by its caller") : Status();
  }

  /// In room that is kept for the next one: a new block of a gigabyte costs more than its conversion.
  const double* in_fp64(const void* w, DType dtype, int64_t elements) {
    if (dtype == DType::fp64) return static_cast<const double*>(w);
    if (elements > room_elements_) {
      room_ = std::make_unique_for_overwrite<double[]>(static_cast<size_t>(elements));
      room_elements_ = elements;
    }
    const auto element = static_cast<int64_t>(dtype_bytes(dtype));
    parallel_for(elements, threads_, [&](int64_t begin, int64_t end) {
      float part[kDepth];
      for (int64_t i = begin; i < end; i += kDepth) {
        const int64_t n = std::min(kDepth, end - i);
        base::convert_to_float(static_cast<const char*>(w) + i * element, dtype, part, n);
        std::copy(part, part + n, room_.get() + i);
      }
    });
    return room_.get();
  }

  static void one_query(const Attention& x, int64_t token, int64_t head, double* p) {
    const int64_t sequence = token / x.length * x.length;
    const int64_t first = x.window > 0 ? std::max(sequence, token - x.window + 1) : sequence;
    const int64_t kv = head / (x.heads / x.kv_heads), kv_pitch = x.kv_heads * x.dim;
    const double* q = x.q + (token * x.heads + head) * x.dim;
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t t = first; t <= token; ++t) {
      const double* k = x.k + t * kv_pitch + kv * x.dim;
      double dot = 0;
      for (int64_t d = 0; d < x.dim; ++d) dot += q[d] * k[d];
      p[t - first] = dot / std::sqrt(static_cast<double>(x.dim));
      largest = std::max(largest, p[t - first]);
    }
    for (int64_t t = first; t <= token; ++t) sum += p[t - first] = std::exp(p[t - first] - largest);
    double* out = x.out + (token * x.heads + head) * x.dim;
    std::fill(out, out + x.dim, 0.0);
    for (int64_t t = first; t <= token; ++t) {
      const double* v = x.v + t * kv_pitch + kv * x.dim;
      const double weight = p[t - first] / sum;
      for (int64_t d = 0; d < x.dim; ++d) out[d] += weight * v[d];
    }
  }

  int threads_;
  std::stop_token stop_;
  std::unique_ptr<double[]> room_;
  int64_t room_elements_ = 0;
};

}  // namespace

void parallel_for(int64_t n, int threads, const std::function<void(int64_t, int64_t)>& f) {
  std::mutex mutex;
  std::exception_ptr failure;
  std::atomic<int64_t> next{0};
  const int64_t piece = std::max<int64_t>(1, n / (8 * std::max(threads, 1)));
  const auto work = [&] {
    try {
      for (int64_t begin = next.fetch_add(piece); begin < n; begin = next.fetch_add(piece))
        f(begin, std::min(n, begin + piece));
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> workers;
  for (int i = 1; i < threads; ++i) workers.emplace_back(work);
  work();
  for (std::thread& worker : workers) worker.join();
  if (failure) std::rethrow_exception(failure);
}

std::unique_ptr<OracleMath> make_cpu_oracle_math(int threads, std::stop_token stop) {
  return std::make_unique<CpuOracleMath>(threads, std::move(stop));
}

}  // namespace overlace::model
