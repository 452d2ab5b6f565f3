#include "src/model/traced_device.h"

#include "src/runtime/clock.h"

namespace overlace::model {

template <class Work>
base::Status TracedDevice::traced(const char* name, Work work) {
  if (trace_ == nullptr) return work();
  const int64_t begin = runtime::now_ns();
  base::Status status = work();
  trace_->spans.push_back({.rank = rank_,
                           .lane = "sm 0",
                           .name = name,
                           .category = "other",
                           .begin_ns = begin,
                           .end_ns = runtime::now_ns()});
  return status;
}

base::Status TracedDevice::copy(const void* from, void* to, int64_t bytes) {
  return traced("copy input", [&] { return device_->copy(from, to, bytes); });
}

base::Status TracedDevice::add_norm(const AddNormArgs& args) {
  return traced("add, norm", [&] { return device_->add_norm(args); });
}

base::Status TracedDevice::rope(const RopeArgs& args) {
  return traced("rope", [&] { return device_->rope(args); });
}

base::Status TracedDevice::attention(const AttentionArgs& args) {
  return traced("attention", [&] { return device_->attention(args); });
}

base::Status TracedDevice::activation(const ActivationArgs& args) {
  return traced("activation", [&] { return device_->activation(args); });
}

}  // namespace overlace::model
