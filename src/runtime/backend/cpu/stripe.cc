// Striped ranges of CPU ranks: pages of the owners' memfds, mapped one behind the other.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <numeric>

#include "src/runtime/backend/cpu/mapping.h"
#include "src/runtime/bootstrap/fd_exchange.h"
#include "src/runtime/hash.h"
#include "src/runtime/in_process.h"

namespace overlace::runtime {
namespace {

base::Status failed(const char* call, uint64_t bytes) {
  return base::error(Errc::out_of_memory, "{} of {} bytes failed: {}", call, bytes, std::strerror(errno));
}

/// A range of addresses, unmapped at destruction.
class Pages {
 public:
  Pages() = default;
  ~Pages() {
    if (address_ != nullptr) ::munmap(address_, bytes_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  base::Status reserve(uint64_t bytes) {
    void* const address = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) return failed("reservation", bytes);
    address_ = address;
    bytes_ = bytes;
    return {};
  }
  base::Status map(uint64_t at, uint64_t bytes, int fd, uint64_t fd_offset) {
    void* const got =
        ::mmap(data() + at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(fd_offset));
    return got == data() + at ? base::Status() : failed("mmap", bytes);
  }
  char* data() const { return static_cast<char*>(address_); }

 private:
  void* address_ = nullptr;
  uint64_t bytes_ = 0;
};

/// Every rank's range. Threads share one: an owner reaches its parts through the ranges they are in, so that each byte
/// has one address, and a range stays until all ranks let it go.
struct Ranges {
  explicit Ranges(size_t world) : range(world) {}
  std::vector<Pages> range;  // by rank; of processes only the own
  Pages owned;               // processes: my memfd
};

/// Where part `part` of the range of `rank` lies, and how much each owner has in all.
struct Places {
  std::vector<std::vector<uint64_t>> in_file, in_range;
  std::vector<uint64_t> file_bytes, range_bytes;

  explicit Places(const StripePlan& plan) : file_bytes(plan.parts.size()), range_bytes(plan.parts.size()) {
    for (size_t rank = 0; rank < plan.parts.size(); ++rank) {
      in_file.emplace_back();
      in_range.emplace_back();
      for (const StripePart& part : plan.parts[rank]) {
        uint64_t& end = file_bytes[static_cast<size_t>(part.rank)];
        in_file[rank].push_back(end);
        in_range[rank].push_back(range_bytes[rank]);
        end += part.bytes;
        range_bytes[rank] += part.bytes;
      }
    }
  }
};

base::Result<int> make_file(const Places& places, int rank) {
  const uint64_t total = std::accumulate(places.file_bytes.begin(), places.file_bytes.end(), uint64_t{0});
  OVERLACE_TRY(check_available(total, base::format("{} bytes of all ranks do not fit", total)));
  const uint64_t bytes = places.file_bytes[static_cast<size_t>(rank)];
  const int fd = ::memfd_create("overlace-stripe", MFD_CLOEXEC);
  if (fd < 0) return failed("memfd_create", bytes);
  // Reserves the pages: too little memory is an error here, not a SIGBUS later.
  if (const int code = bytes == 0 ? 0 : ::posix_fallocate(fd, 0, static_cast<off_t>(bytes)); code != 0) {
    ::close(fd);
    errno = code;
    return failed("fallocate", bytes);
  }
  return fd;
}

base::Status map_own(const StripePlan& plan, const Places& places, size_t me, const std::vector<int>& fds,
                     bool in_process, Ranges& ranges) {
  OVERLACE_TRY(ranges.range[me].reserve(places.range_bytes[me]));
  for (size_t i = 0; i < plan.parts[me].size(); ++i) {
    const StripePart& part = plan.parts[me][i];
    OVERLACE_TRY(ranges.range[me].map(places.in_range[me][i], part.bytes, fds[static_cast<size_t>(part.rank)],
                                      places.in_file[me][i]));
  }
  if (in_process || places.file_bytes[me] == 0) return {};
  OVERLACE_TRY(ranges.owned.reserve(places.file_bytes[me]));
  return ranges.owned.map(0, places.file_bytes[me], fds[me], 0);
}

}  // namespace

base::Result<StripeMemory> map_stripes(Control& control, const StripePlan& plan) {
  const auto me = static_cast<size_t>(control.rank());
  const bool in_process = control.in_process();
  const Places places(plan);
  base::Result<int> file = make_file(places, control.rank());
  const int own = file.ok() ? *file : -1;
  base::Status status = agree_on_status(control, file.status(), plan.timeout_ms, "striped range, memory");
  base::Result<std::vector<int>> fds =
      status.ok() ? exchange_fds(control, control.all_ranks(), own, plan.timeout_ms) : status;
  if (own >= 0) ::close(own);
  if (!fds.ok()) return fds.status();

  const auto make = [&] { return std::make_shared<Ranges>(plan.parts.size()); };
  const uint64_t key = hash_word(plan.number, hash_text("stripes", control.generation()));
  const auto ranges = in_process ? std::static_pointer_cast<Ranges>(share_in_process(key, make)) : make();
  status = map_own(plan, places, me, *fds, in_process, *ranges);
  for (const int fd : *fds) ::close(fd);
  OVERLACE_TRY(agree_on_status(control, status, plan.timeout_ms, "striped range, mapping"));

  StripeMemory memory{.data = ranges->range[me].data(), .owned = {}, .mapping = ranges};
  for (size_t rank = 0; rank < plan.parts.size(); ++rank) {
    for (size_t i = 0; i < plan.parts[rank].size(); ++i) {
      const StripePart& part = plan.parts[rank][i];
      if (static_cast<size_t>(part.rank) != me) continue;
      char* const data = in_process || rank == me ? ranges->range[rank].data() + places.in_range[rank][i]
                                                  : ranges->owned.data() + places.in_file[rank][i];
      memory.owned.push_back({static_cast<int>(rank), static_cast<int>(i), data, part.bytes});
    }
  }
  return memory;
}

}  // namespace overlace::runtime
