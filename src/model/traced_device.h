// A CPU device that writes down what it does between the operators: timelines then show all of a rank's work.
#pragma once

#include <memory>

#include "src/base/trace.h"
#include "src/model/device.h"

namespace overlace::model {

class TracedDevice final : public Device {
 public:
  TracedDevice(std::unique_ptr<Device> device, int rank) : device_(std::move(device)), rank_(rank) {}
  /// Spans of category `other` on lane "sm 0" are appended until a null pointer is given.
  void set_trace(base::Trace* trace) { trace_ = trace; }

  base::Result<void*> alloc(int64_t bytes, std::string_view what) override { return device_->alloc(bytes, what); }
  void free(void* block) override { device_->free(block); }
  base::Status upload(const void* host, void* device, int64_t bytes) override {
    return device_->upload(host, device, bytes);
  }
  base::Status download(const void* device, void* host, int64_t bytes) override {
    return device_->download(device, host, bytes);
  }
  base::Status copy(const void* from, void* to, int64_t bytes) override;
  base::Status synchronize() override { return device_->synchronize(); }
  base::Status fill(const SeededMatrix& matrix, const TensorView& out) override { return device_->fill(matrix, out); }
  base::Status add_norm(const AddNormArgs& args) override;
  base::Status rope(const RopeArgs& args) override;
  base::Status attention(const AttentionArgs& args) override;
  base::Status activation(const ActivationArgs& args) override;

 private:
  template <class Work>
  base::Status traced(const char* name, Work work);

  std::unique_ptr<Device> device_;
  const int rank_;
  base::Trace* trace_ = nullptr;
};

}  // namespace overlace::model
