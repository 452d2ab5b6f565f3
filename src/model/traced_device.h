// A device whose work between the operators is written down: timelines then show all of a rank's work.
#pragma once

#include <functional>
#include <memory>

#include "src/model/device.h"

namespace overlace::model {

/// Runs `work`, and makes it a span of that name where there is a trace (exec::run_traced).
using RunTraced = std::function<base::Status(const char* name, const std::function<base::Status()>& work)>;

class TracedDevice final : public Device {
 public:
  TracedDevice(std::unique_ptr<Device> device, RunTraced run_traced)
      : device_(std::move(device)), run_traced_(std::move(run_traced)) {}

  base::Result<void*> alloc(int64_t bytes, std::string_view what) override { return device_->alloc(bytes, what); }
  void free(void* block) override { device_->free(block); }
  base::Result<void*> alloc_host(int64_t bytes, std::string_view what) override {
    return device_->alloc_host(bytes, what);
  }
  void free_host(void* block) override { device_->free_host(block); }
  base::Result<std::unique_ptr<CopyLane>> make_copy_lane(int events) override {
    return device_->make_copy_lane(events);
  }
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
  std::string attention_by() const override { return device_->attention_by(); }
  base::Status activation(const ActivationArgs& args) override;

 private:
  template <class Work>
  base::Status traced(const char* name, Work work);

  std::unique_ptr<Device> device_;
  RunTraced run_traced_;
};

}  // namespace overlace::model
