// Ranges of NVTX: what the calling thread does, by name, for profilers such as Nsight Systems. Off unless asked for.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace overlace::base {

/// Whether this process makes ranges. What OVERLACE_NVTX says holds from open_nvtx() on, unless set_nvtx() came first.
extern std::atomic<bool> nvtx_is_on;

/// not_supported where the variable is 1 and overlace was built without the header of NVTX.
Status open_nvtx();
/// Gives what held before; not_supported as above for `on`.
Result<bool> set_nvtx(bool on);

/// A range of the domain "overlace", from construction to destruction on one thread. `category` is one of a few
/// literals. `name()` gives the text, and is called only while ranges are on: else a range costs one load.
class NvtxRange {
 public:
  template <class Name>
  NvtxRange(std::string_view category, const Name& name) : is_pushed_(nvtx_is_on.load(std::memory_order_relaxed)) {
    if (is_pushed_) push(category, name());
  }
  ~NvtxRange() {
    if (is_pushed_) pop();
  }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;

 private:
  static void push(std::string_view category, const std::string& name);
  static void pop();
  const bool is_pushed_;
};

}  // namespace overlace::base
