#include "src/runtime/backend/cpu/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "src/runtime/bootstrap/fd_exchange.h"
#include "src/runtime/bootstrap/socket.h"
#include "src/runtime/hash.h"
#include "src/runtime/in_process.h"
#include "src/runtime/phases.h"

namespace overlace::runtime {
namespace {

constexpr uint64_t kAlign = uint64_t{2} << 20;

base::Status no_memory(const char* call, uint64_t bytes) {
  return base::error(Errc::out_of_memory, "symmetric heap: {} of {} bytes failed: {}", call, bytes,
                     std::strerror(errno));
}

base::Result<std::shared_ptr<Mapping>> reserve_in_process(const OpenContext& context, uint64_t limit) {
  struct Shared {
    base::Result<std::shared_ptr<Mapping>> mapping;
  };
  const int world = context.control.size();
  const std::shared_ptr<void> shared = share_in_process(
      hash_text("heaps", context.control.generation()),
      [&]() -> std::shared_ptr<void> { return std::make_shared<Shared>(Shared{Mapping::reserve(world, limit)}); });
  base::Result<std::shared_ptr<Mapping>> mapping = std::static_pointer_cast<Shared>(shared)->mapping;
  // Nobody lets go before all hold it.
  OVERLACE_TRY(agree_on_status(context.control, mapping.status(), context.options.timeout_ms, "open, heap"));
  return mapping;
}

base::Status check_room(uint64_t ranks, uint64_t bytes) {
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  const base::Status status =
      check_available(bytes > most / ranks ? most : bytes * ranks,
                      base::format("symmetric heap: {} ranks with {} bytes each do not fit", ranks, bytes));
  return status.ok() ? status : base::Status(status.code(), status.message() + "; lower heap_bytes");
}

/// Memory behind the bytes [from, to) of my heap. Too little of it is an error here, not a SIGBUS later.
base::Status add_own(const Control& control, const Heaps& heaps, uint64_t from, uint64_t to) {
  if (control.in_process()) {
    char* const begin = heaps.mapping->base(control.rank()) + from;
    return ::mprotect(begin, to - from, PROT_READ | PROT_WRITE) == 0 ? base::Status()
                                                                     : no_memory("mprotect", to - from);
  }
  const int code = ::posix_fallocate(heaps.own.get(), static_cast<off_t>(from), static_cast<off_t>(to - from));
  errno = code;
  return code == 0 ? base::Status() : no_memory("fallocate", to - from);
}

/// The same bytes of the heaps of all ranks on this host, from their descriptors.
base::Status map_near(Control& control, int64_t timeout_ms, const Heaps& heaps, uint64_t from, uint64_t to) {
  base::Result<std::vector<int>> fds = exchange_fds(control, heaps.near, heaps.own.get(), timeout_ms);
  if (!fds.ok()) return fds.status();
  std::vector<UniqueFd> closed_at_end;
  for (const int fd : *fds) closed_at_end.emplace_back(fd);
  come_past(Phase::mapping, control.rank());
  for (size_t i = 0; i < fds->size(); ++i) {
    // Beyond the end of a file that is too short a load would be a SIGBUS.
    struct stat file {};
    if (::fstat((*fds)[i], &file) != 0 || file.st_size < 0 || static_cast<uint64_t>(file.st_size) < to)
      return base::error(Errc::layout_mismatch, "symmetric heap: rank {} passed memory of {} bytes, wanted {}",
                         heaps.near[i], file.st_size, to);
    void* const wanted = heaps.mapping->base(heaps.near[i]) + from;
    void* const got =
        ::mmap(wanted, to - from, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (*fds)[i], static_cast<off_t>(from));
    if (got != wanted) return no_memory("mmap", to - from);
  }
  return {};
}

}  // namespace

std::vector<int> ranks_of_host(const OpenContext& context) {
  std::vector<int> ranks;
  for (const Hello& hello : context.hellos)
    if (hello.host_id == context.hellos[static_cast<size_t>(context.control.rank())].host_id)
      ranks.push_back(hello.rank);
  return ranks;
}

base::Status check_available(uint64_t bytes, const std::string& what) {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  uint64_t kib = 0, available = 0;
  while (file >> name >> kib && std::getline(file, unit))
    if (name == "MemAvailable:") available = kib * 1024;
  if (available == 0 || bytes <= available) return {};
  return base::error(Errc::out_of_memory, "{} into {} bytes of available memory", what, available);
}

Mapping::Mapping(void* address, uint64_t bytes, uint64_t stride)
    : address_(address),
      bytes_(bytes),
      stride_(stride),
      first_(reinterpret_cast<char*>(align_up(reinterpret_cast<uintptr_t>(address), kAlign))) {}

Mapping::~Mapping() { ::munmap(address_, bytes_); }

base::Result<std::shared_ptr<Mapping>> Mapping::reserve(int world, uint64_t heap_bytes) {
  const uint64_t stride = align_up(heap_bytes, kAlign);
  const uint64_t bytes = stride * static_cast<uint64_t>(world) + kAlign;
  void* const address = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return no_memory("reservation", bytes);
  return std::shared_ptr<Mapping>(new Mapping(address, bytes, stride));
}

base::Status grow_heaps(Control& control, int64_t timeout_ms, uint64_t heap_bytes, Heaps* heaps) {
  const uint64_t from = heaps->bytes;
  base::Status status = check_room(heaps->near.size(), heap_bytes - from);
  if (status.ok()) status = add_own(control, *heaps, from, heap_bytes);
  OVERLACE_TRY(agree_on_status(control, status, timeout_ms, "memory of the heap"));
  if (!control.in_process()) {
    status = map_near(control, timeout_ms, *heaps, from, heap_bytes);
    // The others write there as soon as they know that all are ready.
    if (status.ok() && heaps->usable != nullptr) heaps->usable->store(heap_bytes, std::memory_order_release);
    OVERLACE_TRY(agree_on_status(control, status, timeout_ms, "mappings of the heap"));
  }
  heaps->bytes = heap_bytes;
  if (heaps->usable != nullptr) heaps->usable->store(heap_bytes, std::memory_order_release);
  return {};
}

base::Result<Heaps> map_heaps(const OpenContext& context, uint64_t heap_bytes, uint64_t limit) {
  Control& control = context.control;
  Heaps heaps;
  heaps.near = ranks_of_host(context);
  base::Status status = check_room(heaps.near.size(), heap_bytes);
  if (status.ok() && !control.in_process()) {
    heaps.own = UniqueFd(::memfd_create("overlace-heap", MFD_CLOEXEC));
    if (!heaps.own) status = no_memory("memfd_create", heap_bytes);
  }
  OVERLACE_TRY(agree_on_status(control, status, context.options.timeout_ms, "open, heap"));
  base::Result<std::shared_ptr<Mapping>> mapping =
      control.in_process() ? reserve_in_process(context, limit) : Mapping::reserve(control.size(), limit);
  status = mapping.status();
  if (mapping.ok()) heaps.mapping = std::move(*mapping);
  OVERLACE_TRY(agree_on_status(control, status, context.options.timeout_ms, "open, heap"));
  OVERLACE_TRY(grow_heaps(control, context.options.timeout_ms, heap_bytes, &heaps));
  return heaps;
}

}  // namespace overlace::runtime
