#include "src/model/cuda/cudnn_attention.h"

#include "src/base/format.h"

#ifdef OVERLACE_HAS_CUDNN_FRONTEND
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING  // cuDNN is opened at run time
#define CUDNN_FRONTEND_SKIP_JSON_LIB           // graphs are not written to files
#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <cmath>
#include <map>
#include <unordered_map>
#endif

#ifdef OVERLACE_HAS_CUDNN_FRONTEND
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend looks its symbols up here
}
#endif

namespace overlace::model {

#ifdef OVERLACE_HAS_CUDNN_FRONTEND
namespace {

namespace fe = cudnn_frontend;
enum Uid : int64_t { kQ = 1, kK, kV, kO };

base::Status fe_status(fe::error_t e, const char* call, const AttentionShape& s) {
  if (e.is_good()) return {};
  return base::error(Errc::not_supported, "cuDNN attention, {}: {} (batch {} sequence {} heads {}/{} head_dim {} {})",
                     call, e.get_message(), s.batch, s.sequence, s.heads, s.kv_heads, s.head_dim, dtype_name(s.dtype));
}

class CudnnAttentionImpl final : public CudnnAttention {
 public:
  explicit CudnnAttentionImpl(cudnnHandle_t handle) : handle_(handle) {}
  ~CudnnAttentionImpl() override {
    plans_.clear();
    (void)cudaFree(workspace_);
    (void)fe::detail::destroy_handle(handle_);
  }

  std::string version() const override {
    const size_t v = fe::detail::get_backend_version();
    return base::format("cudnn {}.{}.{}", v / 10000, v / 100 % 100, v % 100);
  }

  base::Status run(const AttentionShape& s, const void* q, const void* k, const void* v, void* out,
                   void* cuda_stream) override {
    auto it = plans_.find(s);
    if (it == plans_.end()) {
      base::Result<std::shared_ptr<fe::graph::Graph>> plan = build(s);
      if (!plan.ok()) return plan.status();
      it = plans_.emplace(s, *plan).first;
    }
    if (cudnnStatus_t code = fe::detail::set_stream(handle_, static_cast<cudaStream_t>(cuda_stream));
        code != CUDNN_STATUS_SUCCESS) {
      return base::error(Errc::engine, "cudnnSetStream returned {}, wanted {}", static_cast<int>(code),
                         static_cast<int>(CUDNN_STATUS_SUCCESS));
    }
    std::unordered_map<int64_t, void*> pack = {
        {kQ, const_cast<void*>(q)}, {kK, const_cast<void*>(k)}, {kV, const_cast<void*>(v)}, {kO, out}};
    return fe_status(it->second->execute(handle_, pack, workspace_), "execute", s);
  }

 private:
  base::Result<std::shared_ptr<fe::graph::Graph>> build(const AttentionShape& s) {
    auto graph = std::make_shared<fe::graph::Graph>();
    graph->set_io_data_type(s.dtype == DType::fp16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const auto tensor = [&](const char* name, int64_t uid, int64_t heads, int64_t pitch) {
      return graph->tensor(fe::graph::Tensor_attributes()
                               .set_name(name)
                               .set_uid(uid)
                               .set_dim({s.batch, heads, s.sequence, s.head_dim})
                               .set_stride({s.sequence * pitch, s.head_dim, pitch, 1}));
    };
    auto q = tensor("q", kQ, s.heads, s.pitch), k = tensor("k", kK, s.kv_heads, s.pitch),
         v = tensor("v", kV, s.kv_heads, s.pitch);
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(false)
                       .set_causal_mask(true)
                       .set_attn_scale(1.0f / std::sqrt(static_cast<float>(s.head_dim)));
    if (s.window > 0 && s.window < s.sequence) options.set_diagonal_band_left_bound(static_cast<int>(s.window));
    auto [out, stats] = graph->sdpa(q, k, v, options);
    out->set_output(true)
        .set_uid(kO)
        .set_dim({s.batch, s.heads, s.sequence, s.head_dim})
        .set_stride({s.sequence * s.out_pitch, s.head_dim, s.out_pitch, 1});
    OVERLACE_TRY(fe_status(graph->build(handle_, {fe::HeurMode_t::A}), "build", s));
    int64_t bytes = 0;
    OVERLACE_TRY(fe_status(graph->get_workspace_size(bytes), "get_workspace_size", s));
    if (bytes > workspace_bytes_) {
      (void)cudaFree(workspace_);
      workspace_ = nullptr;
      workspace_bytes_ = 0;
      if (cudaError_t e = cudaMalloc(&workspace_, static_cast<size_t>(bytes)); e != cudaSuccess) {
        return base::error(Errc::out_of_memory, "cuDNN workspace of {} bytes: {}", bytes, cudaGetErrorString(e));
      }
      workspace_bytes_ = bytes;
    }
    return graph;
  }

  cudnnHandle_t handle_;
  std::map<AttentionShape, std::shared_ptr<fe::graph::Graph>> plans_;
  void* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
};

}  // namespace

base::Result<std::unique_ptr<CudnnAttention>> CudnnAttention::open() {
  static void* const library = fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return base::error(Errc::not_supported, "cuDNN: libcudnn.so.9 cannot be opened, wanted where the loader looks");
  cudnnHandle_t handle = nullptr;
  if (cudnnStatus_t s = fe::detail::create_handle(&handle); s != CUDNN_STATUS_SUCCESS) {
    return base::error(Errc::not_supported, "cudnnCreate returned {}, wanted {}", static_cast<int>(s),
                       static_cast<int>(CUDNN_STATUS_SUCCESS));
  }
  return std::unique_ptr<CudnnAttention>(std::make_unique<CudnnAttentionImpl>(handle));
}
#else
base::Result<std::unique_ptr<CudnnAttention>> CudnnAttention::open() {
  return base::error(
      Errc::not_supported,
      "cuDNN attention: built without cuDNN's frontend headers, wanted with OVERLACE_CUDNN_FRONTEND_DIR");
}
#endif

}  // namespace overlace::model
