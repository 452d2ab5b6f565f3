#include "src/runtime/control.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#include "src/runtime/bootstrap/secret.h"
#include "src/runtime/bootstrap/socket.h"
#include "src/runtime/clock.h"
#include "src/runtime/control_packet.h"
#include "src/runtime/hash.h"
#include "src/runtime/hello.h"
#include "src/runtime/mailbox.h"
#include "src/runtime/phases.h"

namespace overlace::runtime {
namespace {

/// The first that ranks say of themselves. What rank 0 draws holds for all.
struct Introduction {
  static constexpr size_t kMaxAddresses = 8;
  uint64_t generation = 0, host = 0;
  Secret secret{};
  uint64_t num_addresses = 0;
  uint32_t addresses[kMaxAddresses] = {};  // of this host, for the others to find their way to it
};

base::Result<Introduction> introduce(const Bootstrap& bootstrap) {
  Introduction mine;
  mine.host = host_id();
  for (const std::string& address : bootstrap.in_process() ? std::vector<std::string>{} : own_addresses())
    if (mine.num_addresses < Introduction::kMaxAddresses) mine.addresses[mine.num_addresses++] = number_of(address);
  if (bootstrap.rank() != 0) return mine;
  OVERLACE_TRY(draw_random(std::as_writable_bytes(std::span(&mine.generation, 1))));
  OVERLACE_TRY(draw_random(mine.secret));
  return mine;
}

base::Result<Meeting> meet_at(Bootstrap& bootstrap, int64_t timeout_ms) {
  const base::Result<Introduction> mine = introduce(bootstrap);
  if (!mine.ok()) return mine.status();
  const std::vector<Bytes> all = bootstrap.allgather(std::as_bytes(std::span(&*mine, 1)), timeout_ms);
  if (all.size() != static_cast<size_t>(bootstrap.size()))
    return base::error(Errc::bootstrap, "the bootstrap's all-gather gave {} entries, wanted {}", all.size(),
                       bootstrap.size());
  Meeting meeting;
  for (size_t r = 0; r < all.size(); ++r) {
    Introduction theirs;
    if (all[r].size() != sizeof theirs)
      return base::error(Errc::bootstrap, "the bootstrap's all-gather gave {} bytes of rank {}, wanted {}",
                         all[r].size(), r, sizeof theirs);
    std::memcpy(&theirs, all[r].data(), sizeof theirs);
    if (theirs.num_addresses > Introduction::kMaxAddresses)
      return base::error(Errc::bootstrap, "rank {} says that it has {} addresses, wanted at most {}", r,
                         theirs.num_addresses, Introduction::kMaxAddresses);
    if (r == 0) meeting.generation = theirs.generation, meeting.secret = theirs.secret;
    meeting.hosts.push_back(theirs.host);
    if (theirs.host == mine->host) continue;
    for (uint64_t i = 0; i < theirs.num_addresses; ++i) meeting.others.push_back(text_of_number(theirs.addresses[i]));
  }
  return meeting;
}

}  // namespace

base::Result<std::unique_ptr<Control>> Control::open(Bootstrap& bootstrap, int64_t timeout_ms) {
  try {
    come_past(Phase::bootstrap, bootstrap.rank());
    const base::Result<Meeting> meeting = meet_at(bootstrap, timeout_ms);
    if (!meeting.ok()) return meeting.status();
    return bootstrap.in_process() ? open_threads_control(bootstrap, meeting->generation, timeout_ms)
                                  : open_socket_control(bootstrap, *meeting, timeout_ms);
  } catch (...) {
    return base::status_of_current_exception();
  }
}

std::vector<int> Control::all_ranks() const {
  std::vector<int> ranks(static_cast<size_t>(size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

base::Result<Tag> Control::post(std::span<const int> members, std::span<const std::byte> mine) {
  if (mine.size() > kMaxBytes)
    return base::invalid_argument("exchange: {} bytes, wanted at most {} a rank", mine.size(), kMaxBytes);
  uint64_t group = kHashSeed;
  for (const int member : members) group = hash_word(static_cast<uint64_t>(member), group);
  auto number = std::find_if(numbers_.begin(), numbers_.end(), [&](const auto& n) { return n.first == group; });
  if (number == numbers_.end()) number = numbers_.insert(numbers_.end(), {group, 0});
  const Tag tag{group, kExchange, number->second++};
  for (const int member : members)
    if (member != rank()) OVERLACE_TRY(send(member, tag, mine));
  return tag;
}

base::Result<std::vector<Bytes>> Control::exchange(std::span<const int> members, std::span<const std::byte> mine,
                                                   int64_t timeout_ms, const std::string& what) {
  const int64_t deadline_ns = now_ns() + timeout_ms * 1000000;
  const base::Result<Tag> posted = post(members, mine);
  if (!posted.ok()) return posted.status();
  const Tag tag = *posted;
  std::vector<Bytes> all;
  all.reserve(members.size());
  for (const int member : members) {
    if (member == rank()) {
      all.emplace_back(mine.begin(), mine.end());
      continue;
    }
    const int64_t left_ms = std::max<int64_t>((deadline_ns - now_ns()) / 1000000, 0);
    base::Result<Message> message = receive(member, tag, left_ms, what);
    if (message.status().code() == Errc::timeout) return missing(members, tag, timeout_ms, what);
    if (!message.ok()) return message.status();
    all.push_back(std::move(message->bytes));
  }
  return all;
}

base::Result<std::vector<Attendance>> Control::meet(std::span<const int> members, uint64_t group, uint32_t number,
                                                    std::span<const std::byte> mine, int64_t timeout_ms,
                                                    const std::string& what) {
  if (mine.size() >= kMaxBytes)
    return base::invalid_argument("meeting: {} bytes, wanted at most {} a rank", mine.size(), kMaxBytes - 1);
  const int64_t deadline_ns = now_ns() + timeout_ms * 1000000;
  const Tag tag{group, kMeeting, number};
  Bytes said(1 + mine.size(), kHasCome);
  std::copy(mine.begin(), mine.end(), said.begin() + 1);
  for (const int member : members)
    if (member != rank()) OVERLACE_TRY(send(member, tag, said));
  std::vector<Attendance> all(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] == rank()) {
      all[i] = {.has_come = true, .bytes = Bytes(mine.begin(), mine.end())};
      continue;
    }
    const int64_t left_ms = std::max<int64_t>((deadline_ns - now_ns()) / 1000000, 0);
    base::Result<Message> message = receive(members[i], tag, left_ms, what);
    if (message.status().code() == Errc::timeout) return missing(members, tag, timeout_ms, what);
    if (!message.ok()) return message.status();
    const Bytes& bytes = message->bytes;
    if (bytes.size() == 1 + sizeof(uint64_t) && bytes[0] == kHasPassed) {
      std::memcpy(&all[i].answer, bytes.data() + 1, sizeof(uint64_t));
    } else if (!bytes.empty() && bytes[0] == kHasCome) {
      all[i] = {.has_come = true, .bytes = Bytes(bytes.begin() + 1, bytes.end())};
    } else {
      return base::error(Errc::engine, "rank {} said {} bytes at a meeting, {}, that nobody says there", members[i],
                         bytes.size(), what);
    }
  }
  return all;
}

/// At the deadline some ranks are only late because they wait as well: all that have not come are named.
base::Status Control::missing(std::span<const int> members, const Tag& tag, int64_t timeout_ms,
                              const std::string& what) const {
  std::string ranks, states;
  int count = 0;
  for (const int member : members) {
    if (member == rank() || has_arrived(member, tag)) continue;
    const char* separator = count++ == 0 ? "" : ", ";
    ranks += separator + base::format("{}", member);
    states += separator + peer_state(member);
  }
  return base::error(Errc::timeout, "timeout after {:.1f} s: rank {} waited for rank{} {}, {}; peer state {}",
                     static_cast<double>(timeout_ms) * 1e-3, rank(), count == 1 ? "" : "s", ranks, what, states);
}

base::Status agree_on_status(Control& control, const base::Status& mine, int64_t timeout_ms, const std::string& what) {
  const std::vector<int> members = control.all_ranks();
  std::string text(1, static_cast<char>(mine.code()));
  text += mine.message().substr(0, Control::kMaxBytes / 2);
  if (!mine.ok()) {
    // What the others have to say changes nothing, and after a deadline there is no time left to wait for it.
    (void)control.post(members, bytes_of(text));
    return mine;
  }
  base::Result<std::vector<Bytes>> all = control.exchange(members, bytes_of(text), timeout_ms, what);
  if (!all.ok()) return all.status();
  for (size_t r = 0; r < all->size(); ++r) {
    const Bytes& entry = (*all)[r];
    if (entry.empty() || entry[0] == std::byte{0}) continue;
    const std::string message(reinterpret_cast<const char*>(entry.data()) + 1, entry.size() - 1);
    return base::error(errc_of(static_cast<int32_t>(entry[0])), "rank {}: {}", r, message);
  }
  return {};
}

}  // namespace overlace::runtime
