#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>

#include "bench/common/device.h"
#include "src/base/half.h"

namespace overlace::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kTwoPi = 6.283185307179586;
constexpr size_t kAlignment = 4096;

float value_at(const Normal& n, int64_t row, int64_t col) {
  if (n.is_ramp) return ramp_at(n, row, col);
  const Uniforms at = uniforms_at(n, row, col);
  return static_cast<float>(std::sqrt(-2.0 * std::log(double{at.u})) * std::cos(kTwoPi * double{at.v}) * n.scale);
}

double rounded(const Normal& n, int64_t row, int64_t col, DType dtype) {
  double cell = 0;
  base::store_element(&cell, dtype, 0, double{value_at(n, row, col)});
  return base::load_element(&cell, dtype, 0);
}

char* row_of(const TensorView& m, int64_t row) {
  return static_cast<char*>(m.data) + static_cast<size_t>(row * m.stride(0)) * dtype_bytes(m.dtype);
}

class CpuDevice final : public Device {
 public:
  ~CpuDevice() override { release_all(); }
  bool is_gpu() const override { return false; }
  StreamRef stream() override { return StreamRef::cpu(); }
  base::Result<void*> alloc(size_t bytes) override {
    void* p = ::operator new (std::max<size_t>(bytes, 1), std::align_val_t{kAlignment}, std::nothrow);
    if (p == nullptr) return base::error(Errc::out_of_memory, "{} bytes of host memory", bytes);
    blocks_.push_back(p);
    return p;
  }
  void release_all() override {
    for (void* p : blocks_) ::operator delete (p, std::align_val_t{kAlignment});
    blocks_.clear();
  }
  base::Status synchronize() override { return {}; }  // calls on CPU ranks return when they are done
  base::Status memset(void* data, int byte, size_t bytes) override {
    std::memset(data, byte, bytes);
    return {};
  }
  base::Status copy(void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return {};
  }
  base::Status record_begin() override {
    begin_ = Clock::now();
    return {};
  }
  base::Status record_end() override {
    end_ = Clock::now();
    return {};
  }
  base::Status wait_for_begin() override { return {}; }
  base::Result<double> elapsed_us() override {
    return std::chrono::duration<double, std::micro>(end_ - begin_).count();
  }
  base::Result<std::function<base::Status()>> capture(const std::function<base::Status()>&) override {
    return base::error(Errc::not_supported, "CPU ranks have no graphs");
  }
  ClockSample clocks() override { return {}; }
  DeviceInfo describe() override { return {}; }

  base::Status fill(const TensorView& m, const Normal& values) override {
    std::vector<float> row(static_cast<size_t>(m.dim(1)));
    for (int64_t i = 0; i < m.dim(0); ++i) {
      for (int64_t j = 0; j < m.dim(1); ++j) row[static_cast<size_t>(j)] = value_at(values, i, j);
      base::convert_from_float(row.data(), row_of(m, i), m.dtype, m.dim(1));
    }
    return {};
  }

  base::Result<Check> check(const TensorView& out, const std::vector<Factor>& factors, int64_t first_row, DType operand,
                            int64_t samples, uint64_t seed) override {
    Check result;
    if (out.numel() == 0) return result;
    double error2 = 0, want2 = 0;
    for (int64_t sample = 0; sample < samples; ++sample) {
      const uint64_t h = mix(seed + static_cast<uint64_t>(sample) * kGoldenRatio);
      const auto row = static_cast<int64_t>((h >> 32) % static_cast<uint64_t>(out.dim(0)));
      const auto col = static_cast<int64_t>((h & 0xffffffffu) % static_cast<uint64_t>(out.dim(1)));
      const auto sum_at = [&](int64_t of_col) {
        double sum = 0;
        for (const Factor& f : factors) {
          if (f.is_addend) sum += rounded(f.left, first_row + row, of_col, operand);
          for (int64_t k = 0; k < f.k; ++k)
            sum += rounded(f.left, first_row + row, k, operand) * rounded(f.right, of_col, k, operand);
        }
        return sum;
      };
      const auto swiglu = [](double gate, double up) { return gate / (1 + std::exp(-gate)) * up; };
      const double want = factors[0].is_gated ? swiglu(sum_at(2 * col), sum_at(2 * col + 1)) : sum_at(col);
      const double got = base::load_element(row_of(out, row), out.dtype, col), error = std::abs(got - want);
      result.finite = result.finite && std::isfinite(got);
      result.max_error = std::max(result.max_error, std::isfinite(error) ? error : 1e300);
      error2 += error * error;
      want2 += want * want;
    }
    const double n = static_cast<double>(samples), rms = std::sqrt(want2 / n);
    result.sampled = samples;
    result.max_error /= rms;
    result.rms_error = std::sqrt(error2 / n) / rms;
    return result;
  }

  base::Result<Difference> compare(const TensorView& a, const TensorView& b) override {
    Difference d;
    double square = 0;
    for (int64_t i = 0; i < a.dim(0); ++i) {
      for (int64_t j = 0; j < a.dim(1); ++j) {
        const double x = base::load_element(row_of(a, i), a.dtype, j), y = base::load_element(row_of(b, i), b.dtype, j);
        d.same_bits = d.same_bits && x == y;  // NaN differs from itself: unwritten output shows
        const double difference = std::abs(x - y);
        d.max_abs = std::isfinite(difference) ? std::max(d.max_abs, difference) : 1e300;
        square += x * x;
      }
    }
    d.rms = a.numel() == 0 ? 0 : std::sqrt(square / static_cast<double>(a.numel()));
    return d;
  }

  base::Result<std::vector<float>> first_values(const TensorView& m, int64_t count) override {
    std::vector<float> values(static_cast<size_t>(std::min(count, m.numel())));
    base::convert_to_float(m.data, m.dtype, values.data(), static_cast<int64_t>(values.size()));
    return values;
  }

 private:
  std::vector<void*> blocks_;
  Clock::time_point begin_, end_;
};

}  // namespace

std::unique_ptr<Device> cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace overlace::bench
