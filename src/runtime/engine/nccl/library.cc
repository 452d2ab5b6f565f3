#include "src/runtime/engine/nccl/library.h"

#include <dlfcn.h>

#include "src/base/format.h"

namespace overlace::runtime::nccl {
namespace {

constexpr const char* kPlaces[] = {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2",
                                   "/usr/local/cuda/lib/libnccl.so.2"};

std::string version_text_of(int version) {
  return base::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

/// Never closed: communicators' threads may outlive their owner.
base::Result<void*> open_library() {
  if (void* loaded = ::dlopen(kPlaces[0], RTLD_NOW | RTLD_NOLOAD)) return loaded;
  std::string why;
  for (const char* place : kPlaces) {
    if (void* opened = ::dlopen(place, RTLD_NOW | RTLD_LOCAL)) return opened;
    if (why.empty()) {
      const char* text = ::dlerror();
      why = text != nullptr ? text : "unknown reason";
    }
  }
  return base::error(Errc::not_supported, "engine nccl: cannot open libnccl.so.2: {}", why);
}

template <class Function>
base::Status find(void* handle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(handle, name));
  if (*function == nullptr) return base::error(Errc::not_supported, "engine nccl: libnccl.so.2 has no {}", name);
  return {};
}

base::Result<Library> load() {
  base::Result<void*> opened = open_library();
  if (!opened.ok()) return opened.status();
  void* const handle = *opened;
  Library lib;
#define OVERLACE_FIND(name) OVERLACE_TRY(find(handle, #name, &lib.name))
  OVERLACE_FIND(ncclGetVersion);
  OVERLACE_FIND(ncclGetUniqueId);
  OVERLACE_FIND(ncclCommInitRankConfig);
  OVERLACE_FIND(ncclCommSplit);
  OVERLACE_FIND(ncclCommGetAsyncError);
  OVERLACE_FIND(ncclCommFinalize);
  OVERLACE_FIND(ncclCommDestroy);
  OVERLACE_FIND(ncclCommAbort);
  OVERLACE_FIND(ncclGetErrorString);
  OVERLACE_FIND(ncclAllGather);
  OVERLACE_FIND(ncclReduceScatter);
  OVERLACE_FIND(ncclAllReduce);
  OVERLACE_FIND(ncclBroadcast);
  OVERLACE_FIND(ncclReduce);
  OVERLACE_FIND(ncclSend);
  OVERLACE_FIND(ncclRecv);
  OVERLACE_FIND(ncclGroupStart);
  OVERLACE_FIND(ncclGroupEnd);
#undef OVERLACE_FIND
  if (lib.ncclGetVersion(&lib.version) != ncclSuccess || lib.version < kOldestVersion)
    return base::error(Errc::version_mismatch, "engine nccl: the library is {}, wanted {} or later",
                       version_text_of(lib.version), version_text_of(kOldestVersion));
  return lib;
}

}  // namespace

std::string Library::version_text() const { return version_text_of(version); }

base::Result<const Library*> library() {
  static const base::Result<Library> instance = load();
  if (!instance.ok()) return instance.status();
  return &instance.value();
}

}  // namespace overlace::runtime::nccl
