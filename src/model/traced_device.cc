#include "src/model/traced_device.h"

namespace overlace::model {

base::Status TracedDevice::copy(const void* from, void* to, int64_t bytes) {
  return run_traced_("copy input", [&] { return device_->copy(from, to, bytes); });
}

base::Status TracedDevice::add_norm(const AddNormArgs& args) {
  return run_traced_("add, norm", [&] { return device_->add_norm(args); });
}

base::Status TracedDevice::rope(const RopeArgs& args) {
  return run_traced_("rope", [&] { return device_->rope(args); });
}

base::Status TracedDevice::attention(const AttentionArgs& args) {
  return run_traced_("attention", [&] { return device_->attention(args); });
}

base::Status TracedDevice::activation(const ActivationArgs& args) {
  return run_traced_("activation", [&] { return device_->activation(args); });
}

}  // namespace overlace::model
