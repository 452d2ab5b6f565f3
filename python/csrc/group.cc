#include "python/csrc/group.h"

#include <charconv>
#include <functional>

// Of torch; only there where torch was built with CUDA.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index,
                                                                                   void** ret_stream);

namespace overlace_torch {
namespace {

std::mutex table_mutex;
std::map<std::string, std::shared_ptr<Group>, std::less<>>& table() {
  static auto* groups = new std::map<std::string, std::shared_ptr<Group>, std::less<>>();  // outlives exit handlers
  return *groups;
}

ovl_op op_of(const Group& group, const Problem& problem) {
  auto op = sized<ovl_op>();
  op.name = problem.op.c_str();
  op.m = problem.m, op.n = problem.n, op.k = problem.k;
  op.ranks = group.size;
  op.dtype = problem.dtype, op.out_dtype = problem.out_dtype;
  op.b_layout = problem.b_layout;
  op.has_bias = problem.has_bias ? 1 : 0;
  op.has_a = problem.has_a ? 1 : 0;
  op.activation = problem.activation;
  op.row_offsets = problem.row_offsets.empty() ? nullptr : problem.row_offsets.data();
  return op;
}

[[noreturn]] void refuse_plan(const Problem& problem) {
  refuse(problem.op + ": plan is '" + problem.plan +
         "', wanted '' (overlace decides), 'family=NAME', 'family=NAME,degree=N' or a schedule in JSON");
}

/// "family=NAME,degree=N", the second field optional.
ovl_schedule* make_from_fields(const ovl_op& op, const Problem& problem) {
  std::string family;
  int degree = 1;
  size_t begin = 0;
  while (begin <= problem.plan.size()) {
    const size_t end = std::min(problem.plan.find(',', begin), problem.plan.size());
    const std::string field = problem.plan.substr(begin, end - begin);
    if (field.rfind("family=", 0) == 0) {
      family = field.substr(7);
    } else if (field.rfind("degree=", 0) == 0) {
      const char* const last = field.data() + field.size();
      const auto [stop, error] = std::from_chars(field.data() + 7, last, degree);
      if (error != std::errc() || stop != last) refuse_plan(problem);
    } else {
      refuse_plan(problem);
    }
    begin = end + 1;
  }
  if (family.empty()) refuse_plan(problem);
  ovl_schedule* schedule = nullptr;
  check(ovl_schedule_make(&op, family.c_str(), degree, &schedule));
  return schedule;
}

ovl_schedule* make_schedule(const Group& group, const Problem& problem) {
  const ovl_op op = op_of(group, problem);
  ovl_schedule* schedule = nullptr;
  if (problem.plan.empty()) {
    check(ovl_schedule_choose(group.runtime, &op, &schedule));
    if (ovl_schedule_supported(schedule, group.channel, &op) == OVL_OK) return schedule;
    ovl_schedule_free(schedule);
    check(ovl_schedule_make(&op, "library", 1, &schedule));
  } else if (problem.plan.front() == '{') {
    check(ovl_schedule_from_json(problem.plan.c_str(), &schedule));
  } else {
    return make_from_fields(op, problem);
  }
  return schedule;
}

std::string device_name(int device) { return device < 0 ? "cpu" : "cuda:" + std::to_string(device); }

}  // namespace

Group::~Group() {
  for (const auto& [problem, schedule] : schedules) ovl_schedule_free(schedule);
}

std::shared_ptr<Group> find_group(std::string_view op, std::string_view name) {
  const std::lock_guard lock(table_mutex);
  const auto found = table().find(name);
  if (found == table().end())
    refuse(std::string(op) + ": group '" + std::string(name) +
           "' has no overlace team: call overlace.init(group) on all its ranks before the first op");
  return found->second;
}

ovl_schedule* schedule_of(Group& group, const Problem& problem) {
  if (const auto found = group.by_problem.find(problem); found != group.by_problem.end()) {
    group.schedules.splice(group.schedules.begin(), group.schedules, found->second);
    return group.schedules.front().second;
  }
  ovl_schedule* const schedule = make_schedule(group, problem);
  group.schedules.emplace_front(problem, schedule);
  group.by_problem.emplace(problem, group.schedules.begin());
  // So many that no program meets again what goes: a choice that the ranks made together would be made by one alone.
  if (constexpr size_t kMost = 4096; group.schedules.size() > kMost) {
    ovl_schedule_free(group.schedules.back().second);
    group.by_problem.erase(group.schedules.back().first);
    group.schedules.pop_back();
  }
  return schedule;
}

void check_device(const Group& group, const Argument& argument, const Tensor& t) {
  const int device = t.is_cpu() ? -1 : t.get_device_index();
  if (device == group.device) return;
  refuse(argument.of_op() + " is on " + device_name(device) + ", wanted " + device_name(group.device) +
         ", where rank " + std::to_string(group.rank) + " of group '" + group.name + "' is");
}

void use_current_stream(Group& group, std::string_view op) {
  if (group.device < 0) return;
  if (aoti_torch_get_current_cuda_stream == nullptr) refuse(std::string(op) + ": this torch was built without CUDA");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(group.device, &stream));
  if (group.stream == stream) return;
  check(ovl_channel_use(group.channel, stream));
  group.stream = stream;
}

void check_row_offsets(const Group& group, std::string_view op, const std::vector<int64_t>& row_offsets) {
  if (row_offsets.empty()) return;
  bool is_rising = row_offsets.size() == static_cast<size_t>(group.size) + 1 && row_offsets.front() == 0;
  for (size_t i = 1; i < row_offsets.size(); ++i) is_rising = is_rising && row_offsets[i] >= row_offsets[i - 1];
  if (is_rising) return;
  std::string got;
  for (const int64_t offset : row_offsets) got += (got.empty() ? "" : ", ") + std::to_string(offset);
  refuse(std::string(op) + ": row_offsets are [" + got + "], wanted " + std::to_string(group.size + 1) +
         " numbers that begin with 0 and do not fall");
}

}  // namespace overlace_torch

using overlace_torch::Group;

int ovl_torch_add_group(const char* name, ovl_runtime* runtime, ovl_channel* channel, int rank, int size, int device) {
  const auto group = std::make_shared<Group>();
  group->name = name;
  group->runtime = runtime;
  group->channel = channel;
  group->rank = rank;
  group->size = size;
  group->device = device;
  const std::lock_guard lock(overlace_torch::table_mutex);
  return overlace_torch::table().emplace(name, group).second ? OVL_OK : OVL_INVALID_ARGUMENT;
}

int ovl_torch_remove_group(const char* name) {
  const std::lock_guard lock(overlace_torch::table_mutex);
  return overlace_torch::table().erase(name) == 1 ? OVL_OK : OVL_INVALID_ARGUMENT;
}
