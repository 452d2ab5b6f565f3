// oneDNN matmul behind src/exec/onednn/api.h. Compiles with API 2.x and 3.x.
#include <cstdio>
#include <cstring>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>

#include "overlace/dtype_pod.h"
#include "src/exec/onednn/api.h"

extern "C" {
// Functions of the OpenMP runtime that oneDNN was built with; absent in sequential and TBB builds.
int omp_get_max_threads(void) __attribute__((weak));
void omp_set_num_threads(int) __attribute__((weak));
}

namespace {

using dnnl::memory;
using overlace::DType;

/// Ranks share cores, so each call stays on its own thread; the caller's setting is put back.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads != nullptr ? omp_get_max_threads() : 1) {
    if (before_ != 1 && omp_set_num_threads != nullptr) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1 && omp_set_num_threads != nullptr) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

using Key =
    std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int32_t, int32_t, int32_t, int32_t, int32_t, bool>;

Key key_of(const OverlaceOnednnGemm& g) {
  return {g.m, g.n, g.k, g.lda, g.ldb, g.ldc, g.in, g.out, g.a_is_km, g.b_is_nk, g.accumulate, g.bias != nullptr};
}

struct Prepared {
  bool supported = false;
  memory::desc a, b, c, bias;
  dnnl::matmul primitive;
  memory scratchpad;
};

dnnl::engine& cpu() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::data_type type_of(int32_t dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::fp32:
      return memory::data_type::f32;
    case DType::bf16:
      return memory::data_type::bf16;
    case DType::fp16:
      return memory::data_type::f16;
    default:
      return memory::data_type::undef;
  }
}

Prepared prepare(const OverlaceOnednnGemm& g) {
  Prepared p;
  if (type_of(g.in) == memory::data_type::undef || type_of(g.out) == memory::data_type::undef) return p;
  p.a = memory::desc({g.m, g.k}, type_of(g.in), g.a_is_km != 0 ? memory::dims{1, g.lda} : memory::dims{g.lda, 1});
  p.b = memory::desc({g.k, g.n}, type_of(g.in), g.b_is_nk != 0 ? memory::dims{1, g.ldb} : memory::dims{g.ldb, 1});
  p.c = memory::desc({g.m, g.n}, type_of(g.out), memory::dims{g.ldc, 1});
  const bool has_bias = g.bias != nullptr;
  if (has_bias) p.bias = memory::desc({1, g.n}, type_of(g.out), memory::dims{g.n, 1});
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (g.accumulate != 0) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attr.set_post_ops(sum);
  }
  try {
#if DNNL_VERSION_MAJOR >= 3
    const auto pd = has_bias ? dnnl::matmul::primitive_desc(cpu(), p.a, p.b, p.bias, p.c, attr)
                             : dnnl::matmul::primitive_desc(cpu(), p.a, p.b, p.c, attr);
#else
    const auto desc = has_bias ? dnnl::matmul::desc(p.a, p.b, p.bias, p.c) : dnnl::matmul::desc(p.a, p.b, p.c);
    const dnnl::matmul::primitive_desc pd(desc, attr, cpu());
#endif
    // The plain C++ implementation is slower than our own loop.
    if (std::strncmp(pd.impl_info_str(), "ref", 3) == 0) return p;
    p.primitive = dnnl::matmul(pd);
    p.scratchpad = memory(pd.scratchpad_desc(), cpu());
    p.supported = true;
  } catch (const dnnl::error& e) {
    if (e.status != dnnl_unimplemented) throw;
  }
  return p;
}

memory view(const memory::desc& desc, const void* data) { return memory(desc, cpu(), const_cast<void*>(data)); }

void execute(const OverlaceOnednnGemm& g, Prepared& p) {
  dnnl::stream stream(cpu());
  p.primitive.execute(stream, {{DNNL_ARG_SRC, view(p.a, g.a)},
                               {DNNL_ARG_WEIGHTS, view(p.b, g.b)},
                               {DNNL_ARG_DST, view(p.c, g.c)},
                               {DNNL_ARG_BIAS, g.bias != nullptr ? view(p.bias, g.bias) : memory()},
                               {DNNL_ARG_SCRATCHPAD, p.scratchpad}});
  stream.wait();
}

/// Shapes of one schedule are few; beyond this many the oldest knowledge is not worth its memory.
constexpr size_t kMaxPrepared = 512;

}  // namespace

extern "C" __attribute__((visibility("default"))) int overlace_onednn_run(const OverlaceOnednnGemm* gemm, char* error,
                                                                          size_t error_bytes) {
  // One cache per thread: scratchpads must not be shared, and no lock is needed.
  thread_local std::map<Key, Prepared> prepared;
  try {
    const OneThread guard;
    if (prepared.size() >= kMaxPrepared) prepared.clear();
    auto [it, is_new] = prepared.try_emplace(key_of(*gemm));
    if (is_new) it->second = prepare(*gemm);
    if (!it->second.supported) return 1;
    execute(*gemm, it->second);
    return 0;
  } catch (const std::exception& e) {
    std::snprintf(error, error_bytes, "%s", e.what());
    return 2;
  }
}

extern "C" __attribute__((visibility("default"))) const char* overlace_onednn_version() {
  static char text[32];
  const dnnl_version_t* v = dnnl_version();
  std::snprintf(text, sizeof text, "%d.%d.%d", v->major, v->minor, v->patch);
  return text;
}
