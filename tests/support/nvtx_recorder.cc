// A profiler for tests: NVTX loads what NVTX_INJECTION64_PATH names, and this appends the ranges of the process to the
// file that NVTX_RECORDER_FILE names. "push DOMAIN CATEGORY NAME" or "pop DOMAIN", a line each.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace {

struct Domain {
  std::string name;
  std::map<uint32_t, std::string> categories;
};

std::mutex mutex;  // of the file and of all domains

void write(const std::string& line) {
  static std::FILE* const file = std::fopen(std::getenv("NVTX_RECORDER_FILE"), "a");
  if (file == nullptr) std::abort();
  std::fputs((line + "\n").c_str(), file);
  std::fflush(file);
}

Domain* of(nvtxDomainHandle_t handle) { return reinterpret_cast<Domain*>(handle); }

nvtxDomainHandle_t NVTX_API create(const char* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(new Domain{name, {}});  // NOLINT: lives as long as the process
}

void NVTX_API name_category(nvtxDomainHandle_t domain, uint32_t category, const char* name) {
  const std::lock_guard lock(mutex);
  of(domain)->categories[category] = name;
}

int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* what) {
  const std::lock_guard lock(mutex);
  write("push " + of(domain)->name + " " + of(domain)->categories.at(what->category) + " " + what->message.ascii);
  return 0;
}

int NVTX_API pop(nvtxDomainHandle_t domain) {
  const std::lock_guard lock(mutex);
  write("pop " + of(domain)->name);
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int NVTX_API
InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create);
  *table[NVTX_CBID_CORE2_DomainNameCategoryA] = reinterpret_cast<NvtxFunctionPointer>(name_category);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}
