#include "src/exec/cuda/cublaslt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <map>
#include <utility>
#include <vector>

#include "src/exec/cuda/streams.h"
#include "src/runtime/backend/cuda_peer/local_memory.h"

namespace overlace::exec {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;

/// The functions we use, resolved once per process.
struct Api {
  void* library = nullptr;
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetVersion) get_version;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
};

template <class F>
bool resolve(void* library, const char* name, F* out) {
  *out = reinterpret_cast<F>(dlsym(library, name));
  return *out != nullptr;
}

base::Result<Api> load_api() {
  Api api;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
    // A copy that the process already holds (torch's, say) wins.
    api.library = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    if (api.library == nullptr) api.library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (api.library != nullptr) break;
  }
  if (api.library == nullptr) {
    return base::error(Errc::not_supported, "cuBLASLt: cannot open libcublasLt.so.13: {}", dlerror());
  }
  const bool ok = resolve(api.library, "cublasLtCreate", &api.create) &&
                  resolve(api.library, "cublasLtDestroy", &api.destroy) &&
                  resolve(api.library, "cublasLtGetVersion", &api.get_version) &&
                  resolve(api.library, "cublasLtMatmul", &api.matmul) &&
                  resolve(api.library, "cublasLtMatmulAlgoGetHeuristic", &api.get_heuristic) &&
                  resolve(api.library, "cublasLtMatmulDescCreate", &api.desc_create) &&
                  resolve(api.library, "cublasLtMatmulDescDestroy", &api.desc_destroy) &&
                  resolve(api.library, "cublasLtMatmulDescSetAttribute", &api.desc_set) &&
                  resolve(api.library, "cublasLtMatrixLayoutCreate", &api.layout_create) &&
                  resolve(api.library, "cublasLtMatrixLayoutDestroy", &api.layout_destroy) &&
                  resolve(api.library, "cublasLtMatrixLayoutSetAttribute", &api.layout_set) &&
                  resolve(api.library, "cublasLtMatmulPreferenceCreate", &api.preference_create) &&
                  resolve(api.library, "cublasLtMatmulPreferenceDestroy", &api.preference_destroy) &&
                  resolve(api.library, "cublasLtMatmulPreferenceSetAttribute", &api.preference_set);
  if (!ok) return base::error(Errc::version_mismatch, "cuBLASLt: a function is missing in the library: {}", dlerror());
  return api;
}

const base::Result<Api>& api() {
  static const base::Result<Api> loaded = load_api();
  return loaded;
}

/// "e5m2 x e4m3 -> bf16"
std::string types_of(const LtGemm& g) {
  const std::string b = g.b_in.has_value() ? base::format(" x {}", dtype_name(*g.b_in)) : "";
  return base::format("{}{} -> {}", dtype_name(g.in), b, dtype_name(g.out));
}

base::Status lt_status(cublasStatus_t status, const char* call, const LtGemm& g) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  const Errc code = status == CUBLAS_STATUS_NOT_SUPPORTED ? Errc::not_supported : Errc::engine;
  return base::error(code, "{} returned {} for m {} n {} k {} batch {} {}", call, static_cast<int>(status), g.m, g.n,
                     g.k, g.batch, types_of(g));
}

cudaDataType_t data_type(DType t) {
  switch (t) {
    case DType::fp64:
      return CUDA_R_64F;
    case DType::fp32:
      return CUDA_R_32F;
    case DType::fp16:
      return CUDA_R_16F;
    case DType::e4m3:
      return CUDA_R_8F_E4M3;
    case DType::e5m2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_16BF;
  }
}

/// Descriptors and the chosen algorithm of one shape. cuBLASLt is column-major: it computes c^T = b^T a^T.
struct Plan {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, activation = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algo{};

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    const Api& lt = *api();
    if (desc != nullptr) (void)lt.desc_destroy(desc);
    for (cublasLtMatrixLayout_t layout : {weight, activation, result}) {
      if (layout != nullptr) (void)lt.layout_destroy(layout);
    }
  }
};

class CublasLtImpl final : public CublasLt {
 public:
  explicit CublasLtImpl(cublasLtHandle_t handle) : handle_(handle) {}

  ~CublasLtImpl() override {
    plans_.clear();
    workspaces_.clear();
    (void)api()->destroy(handle_);
  }

  std::string version() const override {
    const size_t v = api()->get_version();
    return base::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
  }

  base::Status prepare(const LtGemm& g) override {
    if (plans_.contains(g)) return {};
    auto plan = std::make_unique<Plan>();
    OVERLACE_TRY(describe(g, *plan));
    OVERLACE_TRY(choose(g, *plan));
    plans_.emplace(g, std::move(plan));
    return {};
  }

  base::Status run(const LtGemm& shape, const LtOperands& operands, int lane, cudaStream_t stream) override {
    const auto [a, b, bias, c, a_scale, b_scale] = operands;
    const LtGemm g = shape.at(a, b, c);
    OVERLACE_TRY(prepare(g));
    Plan& plan = *plans_.at(g);
    if (g.bias) {
      OVERLACE_TRY(lt_status(api()->desc_set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias),
                             "cublasLtMatmulDescSetAttribute(BIAS_POINTER)", g));
    }
    if (g.scales != spec::Scales::none) OVERLACE_TRY(set_scales(g, plan, a_scale, b_scale));
    void* workspace = nullptr;
    OVERLACE_TRY(workspace_of(lane, &workspace));
    const double one64 = 1, beta64 = g.accumulate ? 1 : 0;
    const float one32 = 1, beta32 = g.accumulate ? 1 : 0;
    const bool wide = g.in == DType::fp64;
    const void* alpha = wide ? static_cast<const void*>(&one64) : &one32;
    const void* beta = wide ? static_cast<const void*>(&beta64) : &beta32;
    return lt_status(api()->matmul(handle_, plan.desc, alpha, b, plan.weight, a, plan.activation, beta, c, plan.result,
                                   c, plan.result, &plan.algo, workspace, kWorkspaceBytes, stream),
                     "cublasLtMatmul", g);
  }

 private:
  base::Status describe(const LtGemm& g, Plan& plan) {
    const Api& lt = *api();
    const bool wide = g.in == DType::fp64;
    OVERLACE_TRY(lt_status(
        lt.desc_create(&plan.desc, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, wide ? CUDA_R_64F : CUDA_R_32F),
        "cublasLtMatmulDescCreate", g));
    const cublasOperation_t weight_op = g.b_layout == spec::BLayout::nk ? CUBLAS_OP_T : CUBLAS_OP_N;
    OVERLACE_TRY(lt_status(lt.desc_set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, &weight_op, sizeof weight_op),
                           "cublasLtMatmulDescSetAttribute(TRANSA)", g));
    const cublasOperation_t activation_op = g.a_is_km ? CUBLAS_OP_T : CUBLAS_OP_N;
    OVERLACE_TRY(lt_status(lt.desc_set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSB, &activation_op, sizeof activation_op),
                           "cublasLtMatmulDescSetAttribute(TRANSB)", g));
    if (g.bias) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      const cudaDataType_t bias_type = data_type(g.out);
      OVERLACE_TRY(lt_status(lt.desc_set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue),
                             "cublasLtMatmulDescSetAttribute(EPILOGUE)", g));
      OVERLACE_TRY(lt_status(lt.desc_set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type),
                             "cublasLtMatmulDescSetAttribute(BIAS_DATA_TYPE)", g));
    }
    if (g.scales != spec::Scales::none) {
      // The heuristic looks whether there are scales; it does not read them.
      const auto* const some = reinterpret_cast<const void*>(uintptr_t{kMaxLtAlignment});
      OVERLACE_TRY(set_scales(g, plan, some, some));
    }
    if (g.scales == spec::Scales::rows) {
      const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
      for (const auto attribute : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE}) {
        if (lt.desc_set(plan.desc, attribute, &mode, sizeof mode) != CUBLAS_STATUS_SUCCESS)
          return base::error(Errc::not_supported,
                             "cuBLASLt {} has no scales of rows; wanted: 12.9 or newer, or scales of tensors",
                             version());
      }
    }
    const bool nk = g.b_layout == spec::BLayout::nk;
    OVERLACE_TRY(layout(g, &plan.weight, data_type(g.b_in.value_or(g.in)), nk ? g.k : g.n, nk ? g.n : g.k, g.ldb, 0));
    OVERLACE_TRY(layout(g, &plan.activation, data_type(g.in), g.a_is_km ? g.m : g.k, g.a_is_km ? g.k : g.m, g.lda,
                        g.batch_stride_a));
    return layout(g, &plan.result, data_type(g.out), g.n, g.m, g.ldc, g.batch_stride_c);
  }

  /// cuBLASLt's A is our b, its B our a.
  static base::Status set_scales(const LtGemm& g, Plan& plan, const void* a_scale, const void* b_scale) {
    for (const auto& [attribute, scale] : {std::pair{CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b_scale},
                                           std::pair{CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a_scale}})
      OVERLACE_TRY(lt_status(api()->desc_set(plan.desc, attribute, &scale, sizeof scale),
                             "cublasLtMatmulDescSetAttribute(SCALE_POINTER)", g));
    return {};
  }

  base::Status layout(const LtGemm& g, cublasLtMatrixLayout_t* out, cudaDataType_t type, int64_t rows, int64_t cols,
                      int64_t ld, int64_t stride) {
    const Api& lt = *api();
    OVERLACE_TRY(lt_status(lt.layout_create(out, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), ld),
                           "cublasLtMatrixLayoutCreate", g));
    if (g.batch == 1) return {};
    const int32_t batch = static_cast<int32_t>(g.batch);
    OVERLACE_TRY(lt_status(lt.layout_set(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch),
                           "cublasLtMatrixLayoutSetAttribute(BATCH_COUNT)", g));
    return lt_status(lt.layout_set(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
                     "cublasLtMatrixLayoutSetAttribute(STRIDED_BATCH_OFFSET)", g);
  }

  base::Status choose(const LtGemm& g, Plan& plan) {
    const Api& lt = *api();
    cublasLtMatmulPreference_t preference = nullptr;
    OVERLACE_TRY(lt_status(lt.preference_create(&preference), "cublasLtMatmulPreferenceCreate", g));
    const size_t workspace = kWorkspaceBytes;
    base::Status status =
        lt_status(lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace),
                  "cublasLtMatmulPreferenceSetAttribute", g);
    // cuBLASLt's A is our b, its B our a; left alone they stand at 256 bytes each.
    const std::pair<cublasLtMatmulPreferenceAttributes_t, uint32_t> alignments[] = {
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, g.align_b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, g.align_a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, g.align_c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, g.align_c}};
    for (const auto& [attribute, bytes] : alignments)
      if (status.ok())
        status = lt_status(lt.preference_set(preference, attribute, &bytes, sizeof bytes),
                           "cublasLtMatmulPreferenceSetAttribute(MIN_ALIGNMENT)", g);
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    if (status.ok()) {
      status = lt_status(lt.get_heuristic(handle_, plan.desc, plan.weight, plan.activation, plan.result, plan.result,
                                          preference, 1, &result, &found),
                         "cublasLtMatmulAlgoGetHeuristic", g);
    }
    (void)lt.preference_destroy(preference);
    OVERLACE_TRY(status);
    if (found == 0) {
      return base::error(
          Errc::not_supported,
          "cuBLASLt has no algorithm for {}{} m {} n {} k {} lda {} ldb {} ldc {}, a, b and c at multiples of "
          "{}, {} and {} bytes",
          types_of(g), g.bias ? " with a bias" : "", g.m, g.n, g.k, g.lda, g.ldb, g.ldc, g.align_a, g.align_b,
          g.align_c);
    }
    plan.algo = result.algo;
    return {};
  }

  base::Status workspace_of(int lane, void** out) {
    auto found = workspaces_.find(lane);
    if (found == workspaces_.end()) {
      auto made = runtime::cuda_peer::LocalMemory::allocate(kWorkspaceBytes, "cuBLASLt workspace");
      if (!made.ok()) return made.status();
      found = workspaces_.emplace(lane, std::move(*made)).first;
    }
    *out = found->second.data();
    return {};
  }

  cublasLtHandle_t handle_;
  std::map<LtGemm, std::unique_ptr<Plan>> plans_;
  std::map<int, runtime::cuda_peer::LocalMemory> workspaces_;
};

}  // namespace

base::Result<std::unique_ptr<CublasLt>> CublasLt::open(int device) {
  if (!api().ok()) return api().status();
  const DeviceScope scope(device);
  int current = -1;
  OVERLACE_TRY(cuda_status(cudaGetDevice(&current), "cudaGetDevice (cuBLASLt)"));
  if (current != device)
    return base::error(Errc::cuda, "cuBLASLt: device {} cannot be made current, device {} is", device, current);
  cublasLtHandle_t handle = nullptr;
  if (cublasStatus_t s = api()->create(&handle); s != CUBLAS_STATUS_SUCCESS) {
    return base::error(Errc::engine, "cublasLtCreate returned {} on device {}", static_cast<int>(s), device);
  }
  return std::unique_ptr<CublasLt>(std::make_unique<CublasLtImpl>(handle));
}

}  // namespace overlace::exec
