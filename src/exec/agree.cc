#include "src/exec/agree.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "src/runtime/state.h"

namespace overlace::exec {
namespace {

constexpr size_t kMaxMessage = 4096;
constexpr char kAccepted = 'a', kRefused = 'r';

/// What one rank brought.
struct Entry {
  bool is_refused = false;
  Errc code = Errc::ok;
  std::string text;
};

Entry read_entry(const Bytes& bytes) {
  Entry out;
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (all.size() < 1 + sizeof(int32_t) || (all[0] != kAccepted && all[0] != kRefused)) {
    return {true, Errc::plan_mismatch, "it is in another collective call"};
  }
  int32_t code = 0;
  std::memcpy(&code, all.data() + 1, sizeof code);
  out.is_refused = all[0] == kRefused;
  out.code = static_cast<Errc>(code);
  out.text = all.substr(1 + sizeof code);
  return out;
}

}  // namespace

std::string agree_entry(const base::Status& mine, std::string_view text) {
  const auto code = static_cast<int32_t>(mine.code());
  std::string out(1 + sizeof code, mine.ok() ? kAccepted : kRefused);
  std::memcpy(out.data() + 1, &code, sizeof code);
  return out + (mine.ok() ? std::string(text) : mine.message().substr(0, kMaxMessage));
}

Agreement read_agreement(const std::vector<Bytes>& entries, int rank, const base::Status& mine, std::string_view team) {
  Agreement out{.status = mine, .texts = {}, .codes = {}};
  for (size_t r = 0; r < entries.size(); ++r) {
    Entry entry = read_entry(entries[r]);
    if (out.status.ok() && entry.is_refused && static_cast<int>(r) != rank) {
      out.status = base::error(entry.code, "rank {} refused the call, so that no rank of team \"{}\" makes it: {}", r,
                               team, entry.text);
    }
    out.codes.push_back(entry.is_refused ? entry.code : Errc::ok);
    out.texts.push_back(std::move(entry.text));
  }
  return out;
}

base::Status agree_outcome(const Agreement& all, std::string_view what, std::string_view team) {
  if (!all.status.ok()) return all.status;
  const std::vector<std::string>& texts = all.texts;
  for (size_t r = 1; r < texts.size(); ++r) {
    if (texts[r] == texts[0]) continue;
    return base::error(Errc::plan_mismatch, "{} differs between ranks of team \"{}\": rank 0 has {}, rank {} has {}",
                       what, team, texts[0], r, texts[r]);
  }
  return {};
}

Agreement agree_texts(Team& team, const base::Status& mine, std::string_view text) {
  try {
    const std::string entry = agree_entry(mine, text);
    const std::vector<Bytes> all = team.exchange(std::as_bytes(std::span(entry.data(), entry.size())));
    return read_agreement(all, team.rank(), mine, team.name());
  } catch (...) {
    return {.status = mine.ok() ? base::status_of_current_exception() : mine, .texts = {}, .codes = {}};
  }
}

bool CallMeeting::has_passed() const {
  return std::any_of(passed.begin(), passed.end(), [](const auto& answer) { return answer.has_value(); });
}

CallMeeting meet_for_call(Team& team, uint64_t group, uint32_t number, const base::Status& mine,
                          std::string_view text) {
  CallMeeting out;
  try {
    const std::string entry = agree_entry(mine, text);
    const TeamState& state = team.state();
    const std::vector<runtime::Attendance> all =
        state.runtime->meet(state, group, number, std::as_bytes(std::span(entry.data(), entry.size())),
                            base::format("team \"{}\", first call of a shape", state.name));
    std::vector<Bytes> entries;
    const std::string nothing = agree_entry({}, "");
    const auto* const bytes = reinterpret_cast<const std::byte*>(nothing.data());
    for (const runtime::Attendance& one : all) {
      out.passed.push_back(one.has_come ? std::nullopt : std::optional(one.answer));
      entries.push_back(one.has_come ? one.bytes : Bytes(bytes, bytes + nothing.size()));
    }
    out.all = read_agreement(entries, team.rank(), mine, team.name());
  } catch (...) {
    out.all = {.status = mine.ok() ? base::status_of_current_exception() : mine, .texts = {}, .codes = {}};
    out.passed.clear();
  }
  return out;
}

}  // namespace overlace::exec
