#include "src/model/traced_device.h"

namespace overlace::model {

/// By reference: what `work` captures is not copied to the heap while nothing is traced.
template <class Work>
base::Status TracedDevice::traced(const char* name, Work work) {
  return run_traced_(name, std::ref(work));
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
