// Process groups that overlace.init() made known, by name: their channel, and the schedules of the calls so far.
#pragma once

#include <compare>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/capi.h"
#include "python/csrc/tensor_view.h"

namespace overlace_torch {

/// What a schedule is made for; `plan` as the caller wrote it.
struct Problem {
  std::string op;
  int64_t m = 0, n = 0, k = 0;
  int dtype = 0, out_dtype = 0, b_layout = 0;
  bool has_bias = false, has_a = false;
  std::vector<int64_t> row_offsets;  // size + 1 entries, or none
  std::string plan;
  int activation = OVL_NO_ACTIVATION;

  auto operator<=>(const Problem&) const = default;
};

struct Group {
  std::string name;
  ovl_runtime* runtime = nullptr;
  ovl_channel* channel = nullptr;
  int rank = 0, size = 1, device = -1;  // device: CUDA ordinal, -1 on CPU ranks
  std::optional<void*> stream;          // of the last call, on GPUs
  std::mutex mutex;                     // autograd calls from threads of its own; the C API takes one at a time
  /// Schedules of the last problems, those used last in front.
  using Schedules = std::list<std::pair<Problem, ovl_schedule*>>;
  Schedules schedules;
  std::map<Problem, Schedules::iterator> by_problem;

  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group();
};

/// Fails where overlace.init() was not called for it.
std::shared_ptr<Group> find_group(std::string_view op, std::string_view name);
/// Made at the first call of a problem; one of the last 4096 lives as long as the group.
ovl_schedule* schedule_of(Group& group, const Problem& problem);
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
}
