// Process groups that overlace.init() made known, by name: their channel, and the schedules of the calls so far.
#pragma once

#include <compare>
#include <cstdint>
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
  ovl_channel* channel = nullptr;
  int rank = 0, size = 1;
  ovl_hardware hardware{};
  std::optional<void*> stream;  // of the last call, on GPUs
  std::mutex mutex;             // autograd calls from threads of its own; the C API takes one at a time
  std::map<Problem, ovl_schedule*> schedules;

  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group();
};

/// Fails where overlace.init() was not called for it.
std::shared_ptr<Group> find_group(std::string_view op, std::string_view name);
/// Made at the first call of a problem; lives as long as the group.
ovl_schedule* schedule_of(Group& group, const Problem& problem);
/// From now on calls are queued on torch's current stream of the device of `t`. On CPU ranks there is nothing to do.
void use_current_stream(Group& group, std::string_view op, const Tensor& t);
/// One entry per rank and one more, from 0 upwards, if there are any.
void check_row_offsets(const Group& group, std::string_view op, const std::vector<int64_t>& row_offsets);

}  // namespace overlace_torch

// Called by overlace/context.py. The channel stays open until the group is removed.
extern "C" {
__attribute__((visibility("default"))) int ovl_torch_add_group(const char* name, ovl_channel* channel, int rank,
                                                               int size, const ovl_hardware* hardware);
__attribute__((visibility("default"))) int ovl_torch_remove_group(const char* name);
}
