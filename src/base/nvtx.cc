#include "src/base/nvtx.h"

#include <mutex>
#include <vector>

#include "src/base/env.h"

#if defined(OVERLACE_HAS_NVTX)
#include <nvtx3/nvToolsExt.h>
#endif

namespace overlace::base {

std::atomic<bool> nvtx_is_on = false;

namespace {

std::atomic<bool> is_set = false;  // by whoever asked, or by the environment

Status check_built_with(const char* asked) {
#if defined(OVERLACE_HAS_NVTX)
  (void)asked;
  return {};
#else
  return error(Errc::not_supported,
               "{}: overlace was built without nvtx3/nvToolsExt.h, wanted a build that has it (CUDA toolkit)", asked);
#endif
}

#if defined(OVERLACE_HAS_NVTX)
nvtxDomainHandle_t domain() {
  static nvtxDomainHandle_t const made = nvtxDomainCreateA("overlace");
  return made;
}

/// Its number, which the profiler gets to know by name when it comes for the first time.
uint32_t id_of(std::string_view category) {
  static std::mutex mutex;
  static std::vector<std::string> known;
  const std::lock_guard lock(mutex);
  for (size_t i = 0; i < known.size(); ++i)
    if (known[i] == category) return static_cast<uint32_t>(i + 1);
  known.emplace_back(category);
  const auto id = static_cast<uint32_t>(known.size());
  nvtxDomainNameCategoryA(domain(), id, known.back().c_str());
  return id;
}
#endif

}  // namespace

Status open_nvtx() {
  if (is_set.load()) return {};
  const bool on = env().nvtx;
  if (on) OVERLACE_TRY(check_built_with("OVERLACE_NVTX is \"1\""));
  if (!is_set.exchange(true)) nvtx_is_on = on;
  return {};
}

Result<bool> set_nvtx(bool on) {
  if (on) OVERLACE_TRY(check_built_with("set_nvtx"));
  is_set = true;
  return nvtx_is_on.exchange(on);
}

void NvtxRange::push(std::string_view category, const std::string& name) {
#if defined(OVERLACE_HAS_NVTX)
  nvtxEventAttributes_t what = {};
  what.version = NVTX_VERSION;
  what.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  what.category = id_of(category);
  what.messageType = NVTX_MESSAGE_TYPE_ASCII;
  what.message.ascii = name.c_str();
  nvtxDomainRangePushEx(domain(), &what);
#else
  (void)category, (void)name;
#endif
}

void NvtxRange::pop() {
#if defined(OVERLACE_HAS_NVTX)
  nvtxDomainRangePop(domain());
#endif
}

}  // namespace overlace::base
