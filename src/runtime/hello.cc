#include "src/runtime/hello.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "src/base/env.h"
#include "src/runtime/hash.h"

namespace overlace::runtime {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

/// What must be equal on all ranks, as text, so that a difference can be shown.
Fields fields_of(const RuntimeOptions& options, uint32_t abi, int world) {
  const AdversaryOptions& a = options.adversary;
  return {{"abi", base::format("{}", abi)},
          {"world", base::format("{}", world)},
          {"backend", options.backend == Backend::cpu ? "cpu" : "cuda_peer"},
          {"heap_bytes", base::format("{}", options.heap_bytes)},
          {"max_heap_bytes", base::format("{}", options.max_heap_bytes)},
          {"num_signal_ids", base::format("{}", options.num_signal_ids)},
          {"timeout_ms", base::format("{}", options.timeout_ms)},
          {"adversary", base::format("{} {} {} {}", a.enabled, a.max_pieces, a.reorder_window, a.weak_signal)},
          {"link", options.link.to_string()},
          {"net_engine", options.net_engine},
          {"net_max_ctas", base::format("{}", options.net_max_ctas)},
          {"checks of calls", options.checks.calls ? "on" : "off"}};
}

/// name=value lines.
std::string join(const Fields& fields) {
  std::string text;
  for (const auto& [name, value] : fields) text += name + "=" + value + "\n";
  return text;
}

/// First line in which the two differ.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  size_t i = 0;
  while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
  const auto line_at = [i](const std::string& text) {
    const size_t begin = i == 0 ? 0 : text.rfind('\n', i - 1) + 1;
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  return {line_at(a), line_at(b)};
}

}  // namespace

uint64_t machine_id() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  return boot_id.empty() ? kUnknownMachine : hash_text(boot_id);
}

uint64_t host_id() {
  if (!base::env().host_id.empty()) return hash_text(base::env().host_id);
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  struct stat netns {};
  ::stat("/proc/self/ns/net", &netns);
  return hash_word(netns.st_ino, hash_text(name, machine_id()));
}

base::Result<std::vector<Hello>> exchange_hello(Control& control, const RuntimeOptions& options, uint32_t abi) {
  const std::string fields = join(fields_of(options, abi, control.size()));
  Hello mine;
  mine.abi = abi;
  mine.rank = control.rank();
  mine.world = control.size();
  mine.host_id = host_id();
  mine.machine_id = machine_id();
  mine.pid = ::getpid();
  mine.heap_bytes = options.heap_bytes;
  mine.num_ids = options.num_signal_ids;
  mine.options_hash = hash_text(fields);
  Bytes message(sizeof mine + fields.size());
  std::memcpy(message.data(), &mine, sizeof mine);
  std::memcpy(message.data() + sizeof mine, fields.data(), fields.size());

  std::vector<int> members(static_cast<size_t>(control.size()));
  for (size_t r = 0; r < members.size(); ++r) members[r] = static_cast<int>(r);
  base::Result<std::vector<Bytes>> all = control.exchange(members, message, options.timeout_ms, "open, hello");
  if (!all.ok()) return all.status();
  std::vector<Hello> hellos(all->size());
  std::string first;
  for (size_t r = 0; r < all->size(); ++r) {
    const Bytes& entry = (*all)[r];
    if (entry.size() < sizeof(Hello))
      return base::error(Errc::version_mismatch, "rank {} sent a hello of {} bytes, wanted at least {}", r,
                         entry.size(), sizeof(Hello));
    std::memcpy(&hellos[r], entry.data(), sizeof(Hello));
    if (hellos[r].rank != static_cast<int>(r))
      return base::error(Errc::layout_mismatch, "rank {} says that it is rank {}", r, hellos[r].rank);
    const std::string theirs(reinterpret_cast<const char*>(entry.data()) + sizeof(Hello), entry.size() - sizeof(Hello));
    if (r == 0) first = theirs;
    if (theirs == first) continue;
    const auto [value_0, value_r] = first_difference(first, theirs);
    return base::error(Errc::layout_mismatch, "ranks 0 and {} disagree: rank 0 has {}, rank {} has {}", r, value_0, r,
                       value_r);
  }
  return hellos;
}

}  // namespace overlace::runtime
