// Process groups that overlace.init() made known, by name, with their channel.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/capi.h"
#include "overlace/capi_moe.h"
#include "overlace/capi_striped.h"
#include "python/csrc/tensor_view.h"

namespace overlace_torch {

struct Group {
  std::string name;
  ovl_runtime* runtime = nullptr;
  ovl_channel* channel = nullptr;
  int rank = 0, size = 1, device = -1;  // device: CUDA ordinal, -1 on CPU ranks
  std::optional<void*> stream;          // of the last call, on GPUs
  std::mutex mutex;                     // autograd calls from threads of its own; the C API takes one at a time
};

/// Fails where overlace.init() was not called for it.
std::shared_ptr<Group> find_group(std::string_view op, std::string_view name);
/// What operators take besides tensors.
struct Options {
  const std::vector<int64_t>& row_offsets;  // size + 1 entries, or none
  const char* plan;                         // as the caller wrote it
  const char* activation = "none";
  const std::vector<int64_t>& splits = {};  // size x size entries, or none; of columns: size
  const char* exchange = "rows";
  const std::vector<int64_t>& blocks = {};
};
/// A call of ovl_run.
void run(Group& group, const char* op, std::vector<ovl_arg> args, const Options& options);
/// A tensor lies on the device of this rank. Before all that looks at the tensor otherwise.
void check_device(const Group& group, const Argument& argument, const Tensor& t);
/// From now on calls are queued on torch's current stream of the rank's device. On CPU ranks there is nothing to do.
void use_current_stream(Group& group, std::string_view op);
/// One entry per rank and one more, from 0 upwards, if there are any.
void check_row_offsets(const Group& group, std::string_view op, const std::vector<int64_t>& row_offsets);

}  // namespace overlace_torch

// Called by overlace/context.py. The channel stays open until the group is removed.
extern "C" {
__attribute__((visibility("default"))) int ovl_torch_add_group(const char* name, ovl_runtime* runtime,
                                                               ovl_channel* channel, int rank, int size, int device);
__attribute__((visibility("default"))) int ovl_torch_remove_group(const char* name);
/// ovl_run on the channel of a group, behind what torch's current stream has; for overlace.call.
__attribute__((visibility("default"))) int ovl_torch_run(const char* group, const char* op, const ovl_arg* args,
                                                         int count, const char* plan);
/// ovl_moe_run and ovl_moe_run_grad likewise, for overlace/ops/_moe.py.
__attribute__((visibility("default"))) int ovl_torch_moe_run(const char* group, const ovl_moe* layer, int64_t* load,
                                                             int64_t* dropped);
__attribute__((visibility("default"))) int ovl_torch_moe_run_grad(const char* group, const ovl_moe* layer,
                                                                  const ovl_moe_grad* grad);
/// ovl_stripe, and ovl_stripe_reduce_scatter (`sums` 1) or ovl_stripe_all_to_all, likewise, for overlace/_striped.py.
__attribute__((visibility("default"))) int ovl_torch_stripe(const char* group, const ovl_stripe_spec* spec,
                                                            const char* name, ovl_striped** striped);
__attribute__((visibility("default"))) int ovl_torch_stripe_take(const char* group, ovl_striped* striped, int sums,
                                                                 const ovl_tensor* out);
}
