// The vendor library as competitor: every algorithm that its heuristic proposes.
#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>

#include "bench/gemm_core/problem.h"

namespace overlace::bench {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr int kMaxAlgorithms = 32;

struct Api {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  cublasLtHandle_t handle = nullptr;
};

template <class F>
bool resolve(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  return *function != nullptr;
}

base::Result<Api> open_library() {
  void* library = nullptr;
  for (const char* name : {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13", "libcublasLt.so.12"}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) return base::error(Errc::not_supported, "libcublasLt.so.13: {}", dlerror());
  Api api{};
  const bool ok = resolve(library, "cublasLtCreate", &api.create) && resolve(library, "cublasLtMatmul", &api.matmul) &&
                  resolve(library, "cublasLtMatmulAlgoGetHeuristic", &api.heuristic) &&
                  resolve(library, "cublasLtMatmulDescCreate", &api.desc_create) &&
                  resolve(library, "cublasLtMatmulDescSetAttribute", &api.desc_set) &&
                  resolve(library, "cublasLtMatrixLayoutCreate", &api.layout_create) &&
                  resolve(library, "cublasLtMatmulPreferenceCreate", &api.preference_create) &&
                  resolve(library, "cublasLtMatmulPreferenceSetAttribute", &api.preference_set);
  if (!ok) return base::error(Errc::version_mismatch, "libcublasLt: a function is missing");
  if (const cublasStatus_t e = api.create(&api.handle); e != CUBLAS_STATUS_SUCCESS) {
    return base::error(Errc::engine, "cublasLtCreate returned {}", static_cast<int>(e));
  }
  return api;
}

const base::Result<Api>& api() {
  static const base::Result<Api> opened = open_library();
  return opened;
}

struct Call {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, input = nullptr, output = nullptr;
  void* workspace = nullptr;
};

/// Column-major, as the library wants it: C^T (N, M) = B^T A^T.
base::Result<Call> make_call(const Api& lib, const Problem& p) {
  const Shape& s = p.shape();
  const auto u = [](int64_t x) { return static_cast<uint64_t>(x); };
  const cudaDataType_t type = p.dtype() == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
  const cublasOperation_t plain = CUBLAS_OP_N, transposed = CUBLAS_OP_T;
  const cublasOperation_t& weight_op = p.b_is_kn() ? plain : transposed;
  Call c;
  bool ok = lib.desc_create(&c.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS;
  ok = ok && lib.desc_set(c.desc, CUBLASLT_MATMUL_DESC_TRANSA, &weight_op, sizeof weight_op) == CUBLAS_STATUS_SUCCESS;
  ok = ok && (p.b_is_kn() ? lib.layout_create(&c.weight, type, u(s.n), u(s.k), s.n)
                          : lib.layout_create(&c.weight, type, u(s.k), u(s.n), s.k)) == CUBLAS_STATUS_SUCCESS;
  ok = ok && lib.layout_create(&c.input, type, u(s.k), u(s.m), s.k) == CUBLAS_STATUS_SUCCESS;
  ok = ok && lib.layout_create(&c.output, type, u(s.n), u(s.m), s.n) == CUBLAS_STATUS_SUCCESS;
  if (!ok) return base::error(Errc::engine, "cuBLASLt: no descriptor for {}", s.name);
  return c;
}

struct Multiply {
  std::shared_ptr<Call> call;
  const Problem* problem;
  cudaStream_t stream;
  cublasLtMatmulAlgo_t algorithm;

  base::Status operator()(int set) const {
    const Api& lib = api().value();
    const float one = 1, zero = 0;
    const cublasStatus_t e = lib.matmul(lib.handle, call->desc, &one, problem->b(set), call->weight, problem->a(set),
                                        call->input, &zero, problem->c(set), call->output, problem->c(set),
                                        call->output, &algorithm, call->workspace, kWorkspaceBytes, stream);
    if (e == CUBLAS_STATUS_SUCCESS) return {};
    return base::error(Errc::engine, "cublasLtMatmul returned {}", static_cast<int>(e));
  }
};

}  // namespace

base::Result<LibraryGemm> library_competitors(const Problem& problem, int count, Gpu& gpu) {
  if (!api().ok()) return api().status();
  const Api& lib = *api();
  auto made = make_call(lib, problem);
  if (!made.ok()) return made.status();
  auto workspace = gpu.alloc(kWorkspaceBytes);
  if (!workspace.ok()) return workspace.status();
  auto call = std::make_shared<Call>(*made);
  call->workspace = *workspace;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulHeuristicResult_t found[kMaxAlgorithms] = {};
  int returned = 0;
  const bool ok = lib.preference_create(&preference) == CUBLAS_STATUS_SUCCESS &&
                  lib.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes,
                                     sizeof kWorkspaceBytes) == CUBLAS_STATUS_SUCCESS &&
                  lib.heuristic(lib.handle, call->desc, call->weight, call->input, call->output, call->output,
                                preference, std::min(count, kMaxAlgorithms), found, &returned) == CUBLAS_STATUS_SUCCESS;
  if (!ok || returned == 0) return base::error(Errc::engine, "cuBLASLt: no algorithm for {}", problem.shape().name);
  LibraryGemm out;
  out.handle = call;
  for (int i = 0; i < returned; ++i) {
    Competitor c;
    c.name = base::format("cublas {}", i);
    c.enqueue = Multiply{call, &problem, static_cast<cudaStream_t>(gpu.stream().cuda_stream), found[i].algo};
    out.competitors.push_back(std::move(c));
  }
  return out;
}

}  // namespace overlace::bench
