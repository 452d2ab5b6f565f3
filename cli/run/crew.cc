#include "cli/run/crew.h"

#include <algorithm>
#include <cstring>

namespace overlace::cli {
namespace {

using base::Result;
using base::Status;

constexpr size_t kPieceBytes = 64 * 1024;  // what Team::exchange takes

Result<std::vector<Bytes>> exchange(Team& team, const void* data, size_t bytes) {
  try {
    return team.exchange({static_cast<const std::byte*>(data), bytes});
  } catch (...) {
    return base::status_of_current_exception();
  }
}

}  // namespace

Status TeamCrew::barrier() {
  try {
    team_.barrier();
    return {};
  } catch (...) {
    return base::status_of_current_exception();
  }
}

Result<std::vector<std::string>> gather(Team& team, const std::string& mine) {
  const uint64_t length = mine.size();
  const auto lengths = exchange(team, &length, sizeof length);
  if (!lengths.ok()) return lengths.status();
  uint64_t longest = 0;
  for (const Bytes& theirs : *lengths) {
    uint64_t value = 0;
    std::memcpy(&value, theirs.data(), std::min(sizeof value, theirs.size()));
    longest = std::max(longest, value);
  }
  std::vector<std::string> out(team.rank() == 0 ? lengths->size() : 0);
  for (size_t at = 0; at < longest; at += kPieceBytes) {
    const size_t begin = std::min(at, mine.size());
    const auto all = exchange(team, mine.data() + begin, std::min(kPieceBytes, mine.size() - begin));
    if (!all.ok()) return all.status();
    for (size_t rank = 0; rank < out.size(); ++rank) {
      const Bytes& theirs = (*all)[rank];
      out[rank].append(reinterpret_cast<const char*>(theirs.data()), theirs.size());
    }
  }
  return out;
}

Status agree_on(Team& team, const Status& mine) {
  // A message longer than an exchange takes would make the report of a failure fail.
  constexpr size_t kMaxText = 4000;
  std::string text(1, static_cast<char>(mine.code()));
  text += mine.message().substr(0, kMaxText);
  const auto all = exchange(team, text.data(), text.size());
  if (!all.ok()) return mine.ok() ? all.status() : mine;
  for (const Bytes& theirs : *all) {
    const auto code = static_cast<Errc>(theirs.empty() ? 0 : std::to_integer<int>(theirs.front()));
    if (code == Errc::ok) continue;
    return Status(code, std::string(reinterpret_cast<const char*>(theirs.data()) + 1, theirs.size() - 1));
  }
  return {};
}

}  // namespace overlace::cli
