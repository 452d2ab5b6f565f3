#include "src/exec/gemm.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <vector>

#include "src/base/plugin.h"
#include "src/exec/gemm_reference.h"
#include "src/exec/onednn/api.h"
#include "src/spec/operators.h"

namespace overlace::exec {
namespace {

constexpr const char* kOnednnLibrary = "liboverlace_onednn.so";

struct Onednn {
  OverlaceOnednnRun run = nullptr;
  OverlaceOnednnVersion version = nullptr;
  std::string why;  // not empty: not usable
};

#if defined(__SANITIZE_THREAD__)
constexpr bool kHasThreadSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
constexpr bool kHasThreadSanitizer = true;
#else
constexpr bool kHasThreadSanitizer = false;
#endif
#else
constexpr bool kHasThreadSanitizer = false;
#endif

Onednn open_onednn() {
  Onednn p;
  // ThreadSanitizer cannot see how the uninstrumented library orders its own threads.
  if (kHasThreadSanitizer) {
    p.why = "ThreadSanitizer would report the library's own locks as races";
    return p;
  }
  for (const std::string& dir : base::plugin_directories()) {
    const std::string path = dir + "/" + kOnednnLibrary;
    if (access(path.c_str(), R_OK) != 0) continue;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      p.why = base::format("{}: {}", path, dlerror());
      continue;
    }
    p.run = reinterpret_cast<OverlaceOnednnRun>(dlsym(library, kOverlaceOnednnRun));
    p.version = reinterpret_cast<OverlaceOnednnVersion>(dlsym(library, kOverlaceOnednnVersion));
    if (p.run != nullptr && p.version != nullptr) {
      p.why.clear();
      return p;
    }
    p.why = base::format("{} lacks {} or {}", path, kOverlaceOnednnRun, kOverlaceOnednnVersion);
  }
  p.run = nullptr;
  if (p.why.empty()) p.why = base::format("{} was not found beside the program", kOnednnLibrary);
  return p;
}

const Onednn& onednn() {
  static const Onednn opened = open_onednn();
  return opened;
}

std::atomic<bool> use_reference{false};

/// A dimension of at most one element may have any stride.
bool is_unit(const TensorView& t, int i) { return t.stride(i) == 1 || t.dim(i) <= 1; }

/// One for all, or one for each row of a and column of b.
base::Status validate_scales(const GemmArgs& g) {
  if (is_fp8(g.a.dtype) != (g.a_scale.defined() && g.b_scale.defined()))
    return base::invalid_argument("gemm: a is {}, with a_scale {} and b_scale {}; wanted: both with fp8, else none",
                                  dtype_name(g.a.dtype), g.a_scale.shape(), g.b_scale.shape());
  if (!g.a_scale.defined() && !g.b_scale.defined()) return {};
  const bool has_rows = g.a_scale.ndim == 2;
  const bool a_fits = has_rows ? g.a_scale.dim(0) == g.c.dim(0) && g.a_scale.dim(1) == 1 : g.a_scale.dim(0) == 1;
  const bool b_fits = has_rows ? g.b_scale.ndim == 2 && g.b_scale.dim(0) == 1 && g.b_scale.dim(1) == g.c.dim(1)
                               : g.b_scale.ndim == 1 && g.b_scale.dim(0) == 1;
  if (a_fits && b_fits && g.a_scale.dtype == DType::fp32 && g.b_scale.dtype == DType::fp32) return {};
  return base::invalid_argument("gemm: scales are {} {} and {} {}; wanted: fp32, (1) and (1), or ({}, 1) and (1, {})",
                                dtype_name(g.a_scale.dtype), g.a_scale.shape(), dtype_name(g.b_scale.dtype),
                                g.b_scale.shape(), g.c.dim(0), g.c.dim(1));
}

base::Status validate(const GemmArgs& g) {
  if (g.a.ndim != 2 || g.b.ndim != 2 || g.c.ndim != 2) {
    return base::invalid_argument("gemm: a, b and c must have 2 dimensions, got {}, {}, {}", g.a.ndim, g.b.ndim,
                                  g.c.ndim);
  }
  if (g.a.dim(1) != g.b.dim(0) || g.c.dim(0) != g.a.dim(0) || g.c.dim(1) != g.b.dim(1)) {
    return base::invalid_argument(
        "gemm: shapes do not fit: a {} times b {} into c {}; wanted: (M, K), (K, N) and (M, N)", g.a.shape(),
        g.b.shape(), g.c.shape());
  }
  const bool is_scaled = is_fp8(g.a.dtype);
  if ((!is_float(g.a.dtype) && !is_scaled) || !spec::are_factors(g.a.dtype, g.b.dtype)) {
    return base::invalid_argument(
        "gemm: a and b must have one dtype of fp64 fp32 fp16 bf16 e4m3, or be one e4m3 and one e5m2, got {} and {}",
        dtype_name(g.a.dtype), dtype_name(g.b.dtype));
  }
  OVERLACE_TRY(validate_scales(g));
  const bool c_fits = is_scaled ? is_float(g.c.dtype) && g.c.dtype != DType::fp64
                                : g.c.dtype == g.a.dtype || (g.c.dtype == DType::fp32 && g.a.dtype != DType::fp64);
  if (!c_fits) {
    return base::invalid_argument("gemm: c must have {} ({}) or fp32, got {}",
                                  is_scaled ? "16 bits where a has 8" : "the dtype of a", dtype_name(g.a.dtype),
                                  dtype_name(g.c.dtype));
  }
  if (g.accumulate && dtype_bytes(g.c.dtype) < 4) {
    return base::invalid_argument("gemm: accumulation wants c of fp32 or fp64, got {}", dtype_name(g.c.dtype));
  }
  if (!(is_unit(g.a, 0) || is_unit(g.a, 1)) || !is_unit(g.c, 1) || !(is_unit(g.b, 0) || is_unit(g.b, 1))) {
    return base::invalid_argument(
        "gemm: a must be contiguous in K or M, b in K or N, c in N; strides are ({}, {}), ({}, {}), ({}, {})",
        g.a.stride(0), g.a.stride(1), g.b.stride(0), g.b.stride(1), g.c.stride(0), g.c.stride(1));
  }
  if (g.bias.defined() && (g.bias.ndim != 1 || g.bias.dim(0) != g.c.dim(1) || !is_float(g.bias.dtype))) {
    return base::invalid_argument("gemm: bias must be ({}) of a floating dtype, got {} {}", g.c.dim(1), g.bias.shape(),
                                  dtype_name(g.bias.dtype));
  }
  return {};
}

/// The first dimension is the contiguous one; where both could be, the last.
bool is_first_contiguous(const TensorView& t) { return is_unit(t, 0) && !(t.stride(1) == 1 && t.dim(1) > 1); }

/// Whether oneDNN did it; a status if it failed.
base::Result<bool> run_onednn(const GemmArgs& g) {
  const bool bias_fits = !g.bias.defined() || (g.bias.dtype == g.c.dtype && is_unit(g.bias, 0));
  if (g.a.dtype == DType::fp64 || g.a_scale.defined() || !bias_fits || (g.bias.defined() && g.accumulate) ||
      g.a.dim(1) == 0)
    return false;
  const bool nk = is_first_contiguous(g.b), km = is_first_contiguous(g.a);
  OverlaceOnednnGemm p{};
  p.m = g.c.dim(0);
  p.n = g.c.dim(1);
  p.k = g.a.dim(1);
  p.lda = km ? std::max(g.a.stride(1), p.m) : std::max(g.a.stride(0), p.k);  // of a single row: anything
  p.ldb = nk ? std::max(g.b.stride(1), p.k) : std::max(g.b.stride(0), p.n);
  p.ldc = std::max(g.c.stride(0), p.n);
  p.a = g.a.data;
  p.b = g.b.data;
  p.bias = g.bias.data;
  p.c = g.c.data;
  p.in = static_cast<int32_t>(g.a.dtype);
  p.out = static_cast<int32_t>(g.c.dtype);
  p.a_is_km = km ? 1 : 0;
  p.b_is_nk = nk ? 1 : 0;
  p.accumulate = g.accumulate ? 1 : 0;
  std::array<char, 256> why{};
  const int rc = onednn().run(&p, why.data(), why.size());
  if (rc == 2) {
    return base::error(Errc::engine, "oneDNN: {} for m {} n {} k {} {}", why.data(), p.m, p.n, p.k,
                       dtype_name(g.a.dtype));
  }
  return rc == 0;
}

}  // namespace

base::Status cpu_gemm(const GemmArgs& args) {
  OVERLACE_TRY(validate(args));
  if (args.c.dim(0) == 0 || args.c.dim(1) == 0) return {};
  if (!use_reference.load(std::memory_order_relaxed) && onednn().run != nullptr) {
    base::Result<bool> done = run_onednn(args);
    if (!done.ok()) return done.status();
    if (done.value()) return {};
  }
  reference_gemm(args);
  return {};
}

std::string cpu_gemm_provider() {
  if (use_reference.load(std::memory_order_relaxed) || onednn().run == nullptr) return "reference";
  return base::format("onednn {}", onednn().version());
}

base::Status set_cpu_gemm_provider(std::string_view name) {
  if (name == "onednn" && onednn().run == nullptr) {
    return base::error(Errc::not_supported, "cpu_gemm: oneDNN cannot be used: {}", onednn().why);
  }
  if (name != "auto" && name != "reference" && name != "onednn") {
    return base::invalid_argument("cpu_gemm: unknown provider \"{}\", wanted auto, reference or onednn", name);
  }
  use_reference.store(name == "reference", std::memory_order_relaxed);
  return {};
}

}  // namespace overlace::exec
