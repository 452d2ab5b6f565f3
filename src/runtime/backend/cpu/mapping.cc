#include "src/runtime/backend/cpu/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>

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

base::Result<std::shared_ptr<Mapping>> map_in_process(const OpenContext& context, uint64_t heap_bytes) {
  struct Shared {
    base::Result<std::shared_ptr<Mapping>> mapping;
  };
  const int world = context.control.size();
  const std::shared_ptr<void> shared =
      share_in_process(hash_text("heaps", context.control.generation()), [&]() -> std::shared_ptr<void> {
        base::Result<std::shared_ptr<Mapping>> mapping = Mapping::reserve(world, heap_bytes);
        for (int r = 0; mapping.ok() && r < world; ++r)
          if (::mprotect((*mapping)->base(r), heap_bytes, PROT_READ | PROT_WRITE) != 0)
            mapping = no_memory("mprotect", heap_bytes);
        return std::make_shared<Shared>(Shared{std::move(mapping)});
      });
  base::Result<std::shared_ptr<Mapping>> mapping = std::static_pointer_cast<Shared>(shared)->mapping;
  // Nobody lets go before all hold it.
  OVERLACE_TRY(agree_on_status(context.control, mapping.status(), context.options.timeout_ms, "open, heap"));
  return mapping;
}

base::Status map_descriptors(const Mapping& mapping, const std::vector<int>& ranks, const std::vector<int>& fds,
                             uint64_t heap_bytes) {
  for (size_t i = 0; i < fds.size(); ++i) {
    void* const wanted = mapping.base(ranks[i]);
    void* const got = ::mmap(wanted, heap_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fds[i], 0);
    if (got != wanted) return no_memory("mmap", heap_bytes);
  }
  return {};
}

base::Result<std::shared_ptr<Mapping>> map_processes(const OpenContext& context, uint64_t heap_bytes) {
  Control& control = context.control;
  const int64_t timeout_ms = context.options.timeout_ms;
  base::Status status;
  UniqueFd own(::memfd_create("overlace-heap", MFD_CLOEXEC));
  if (!own) status = no_memory("memfd_create", heap_bytes);
  // Reserves the pages: too little memory is an error here, not a SIGBUS later.
  if (status.ok())
    if (const int code = ::posix_fallocate(own.get(), 0, static_cast<off_t>(heap_bytes)); code != 0) {
      errno = code;
      status = no_memory("fallocate", heap_bytes);
    }
  status = agree_on_status(control, status, timeout_ms, "open, heap");
  const std::vector<int> near = ranks_of_host(context);
  base::Result<std::vector<int>> fds = status.ok() ? exchange_fds(control, near, own.get(), timeout_ms) : status;
  own.reset();
  if (!fds.ok()) return fds.status();
  std::vector<UniqueFd> closed_at_end;
  for (const int fd : *fds) closed_at_end.emplace_back(fd);
  come_past(Phase::mapping, control.rank());
  base::Result<std::shared_ptr<Mapping>> mapping = Mapping::reserve(control.size(), heap_bytes);
  if (mapping.ok())
    if (base::Status mapped = map_descriptors(**mapping, near, *fds, heap_bytes); !mapped.ok()) mapping = mapped;
  return mapping;
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

base::Result<std::shared_ptr<Mapping>> map_heaps(const OpenContext& context, uint64_t heap_bytes) {
  const uint64_t near = ranks_of_host(context).size();
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  base::Status status =
      check_available(heap_bytes > most / near ? most : heap_bytes * near,
                      base::format("symmetric heap: {} ranks with {} bytes each do not fit", near, heap_bytes));
  if (!status.ok()) status = base::Status(status.code(), status.message() + "; lower heap_bytes");
  OVERLACE_TRY(agree_on_status(context.control, status, context.options.timeout_ms, "open, heap"));
  return context.control.in_process() ? map_in_process(context, heap_bytes) : map_processes(context, heap_bytes);
}

}  // namespace overlace::runtime
