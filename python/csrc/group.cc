#include "python/csrc/group.h"

#include <exception>
#include <functional>
#include <map>

// A function of torch, which is only there where torch was built with CUDA.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index,
                                                                                   void** ret_stream);

namespace overlace_torch {
namespace {

std::mutex table_mutex;
std::map<std::string, std::shared_ptr<Group>, std::less<>>& table() {
  static auto* groups = new std::map<std::string, std::shared_ptr<Group>, std::less<>>();  // outlives exit handlers
  return *groups;
}

std::string device_name(int device) { return device < 0 ? "cpu" : "cuda:" + std::to_string(device); }

}  // namespace

std::shared_ptr<Group> find_group(std::string_view op, std::string_view name) {
  const std::lock_guard lock(table_mutex);
  const auto found = table().find(name);
  if (found == table().end())
    refuse(std::string(op) + ": group '" + std::string(name) +
           "' has no overlace team: call overlace.init(group) on all its ranks before the first op");
  return found->second;
}

void run(Group& group, const char* op, std::vector<ovl_arg> args, const Options& options) {
  const auto add = [&](const char* name, const std::vector<int64_t>& list) {
    if (!list.empty()) args.push_back(ovl_list_arg(name, list.data(), static_cast<int>(list.size())));
  };
  add("row_offsets", options.row_offsets);
  add("splits", options.splits);
  add("blocks", options.blocks);
  if (options.exchange != std::string_view("rows")) args.push_back(ovl_text_arg("exchange", options.exchange));
  if (options.activation != std::string_view("none")) args.push_back(ovl_text_arg("activation", options.activation));
  check(ovl_run(group.channel, op, args.data(), static_cast<int>(args.size()), options.plan));
}

void check_device(const Group& group, const Argument& argument, const Tensor& t) {
  const int device = t.is_cpu() ? -1 : t.get_device_index();
  if (device == group.device) return;
  refuse(argument.of_op() + " is on " + device_name(device) + ", wanted " + device_name(group.device) +
         ", where rank " + std::to_string(group.rank) + " of group '" + group.name + "' is");
}

void use_current_stream(Group& group, std::string_view op) {
  if (group.device < 0) return;
  if (aoti_torch_get_current_cuda_stream == nullptr)
    refuse(std::string(op) + ": this torch was built without CUDA, wanted with it");
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

namespace {

/// What `call` gives of the group's channel, behind what torch's current stream has.
template <class Call>
int on_channel(const char* group, const char* op, Call call) {
  try {
    const std::shared_ptr<Group> found = overlace_torch::find_group(op, group);
    const std::lock_guard lock(found->mutex);
    overlace_torch::use_current_stream(*found, op);
    return call(found->channel);
  } catch (const overlace_torch::Failure& failure) {
    return failure.code;  // of the C API, whose text says why; that the group is there has Python looked at
  } catch (const std::exception&) {
    return OVL_INTERNAL;  // of torch
  }
}

}  // namespace

int ovl_torch_run(const char* group, const char* op, const ovl_arg* args, int count, const char* plan) {
  return on_channel(group, op, [=](ovl_channel* channel) { return ovl_run(channel, op, args, count, plan); });
}

int ovl_torch_moe_run(const char* group, const ovl_moe* layer, int64_t* load, int64_t* dropped) {
  return on_channel(group, "moe", [=](ovl_channel* channel) { return ovl_moe_run(channel, layer, load, dropped); });
}

int ovl_torch_moe_run_grad(const char* group, const ovl_moe* layer, const ovl_moe_grad* grad) {
  return on_channel(group, "moe_grad", [=](ovl_channel* channel) { return ovl_moe_run_grad(channel, layer, grad); });
}

int ovl_torch_stripe(const char* group, const ovl_stripe_spec* spec, const char* name, ovl_striped** striped) {
  return on_channel(group, "striped", [=](ovl_channel* channel) { return ovl_stripe(channel, spec, name, striped); });
}

int ovl_torch_stripe_take(const char* group, ovl_striped* striped, int sums, const ovl_tensor* out) {
  return on_channel(group, "striped", [=](ovl_channel*) {
    return sums != 0 ? ovl_stripe_reduce_scatter(striped, *out) : ovl_stripe_all_to_all(striped, *out);
  });
}

int ovl_torch_remove_group(const char* name) {
  const std::lock_guard lock(overlace_torch::table_mutex);
  return overlace_torch::table().erase(name) == 1 ? OVL_OK : OVL_INVALID_ARGUMENT;
}
