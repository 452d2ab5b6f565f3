#include "cli/run/failures.h"

#include <algorithm>
#include <limits>

#include "src/base/json.h"

namespace overlace::cli {
namespace {

constexpr size_t kMaxRecord = 4096;  // PIPE_BUF: what a pipe takes whole

bool is_consequence(const RankFailure& failure) {
  const Errc code = failure.status.code();
  return code == Errc::aborted || code == Errc::peer_lost || code == Errc::bootstrap;
}

}  // namespace

std::string encode_failure(const RankFailure& failure) {
  base::Json record = base::Json::object();
  record.set("rank", failure.rank);
  record.set("code", static_cast<int>(failure.status.code()));
  // JSON writes some characters as six bytes.
  for (size_t length = kMaxRecord;; length = length * 3 / 4) {
    record.set("text", failure.status.message().substr(0, length));
    const std::string line = record.dump() + "\n";
    if (line.size() <= kMaxRecord) return line;
  }
}

std::vector<RankFailure> decode_failures(std::string_view bytes) {
  std::vector<RankFailure> out;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const auto record = base::Json::parse(bytes.substr(0, end), "failure");
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
    if (!record.ok()) continue;
    const base::Json *rank = record->find("rank"), *code = record->find("code"), *text = record->find("text");
    if (rank == nullptr || code == nullptr || text == nullptr) continue;
    if (!rank->is_int() || !code->is_int() || !text->is_string()) continue;
    if (rank->as_int() < 0 || rank->as_int() > std::numeric_limits<int>::max()) continue;
    if (code->as_int() <= 0 || code->as_int() > static_cast<int64_t>(Errc::internal)) continue;
    out.push_back(
        {static_cast<int>(rank->as_int()), base::Status(static_cast<Errc>(code->as_int()), text->as_string())});
  }
  return out;
}

std::optional<RankFailure> first_cause(const std::vector<RankFailure>& failures) {
  if (failures.empty()) return std::nullopt;
  const auto cause = std::find_if_not(failures.begin(), failures.end(), is_consequence);
  return cause == failures.end() ? failures.front() : *cause;
}

std::string failure_text(const RankFailure& cause, const std::vector<RankFailure>& failures) {
  const auto differs = [&](const RankFailure& f) { return f.status.message() != cause.status.message(); };
  const bool is_common = failures.size() > 1 && std::none_of(failures.begin(), failures.end(), differs);
  return is_common ? cause.status.message() : base::format("rank {}: {}", cause.rank, cause.status.message());
}

}  // namespace overlace::cli
