#include "src/plan/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/file.h"
#include "src/base/json.h"
#include "src/base/log.h"

namespace overlace::plan {
namespace {

using base::Json;

constexpr size_t kMostLines = 4096;
constexpr std::chrono::milliseconds kLockWait{1000}, kLockPause{5};

constexpr Tier kTiers[] = {Tier::rule, Tier::recurrence, Tier::simulation, Tier::probe};

std::optional<Tier> tier_of(const std::string& name) {
  for (const Tier tier : kTiers)
    if (to_string(tier) == name) return tier;
  return std::nullopt;
}

std::string text_of(const Json& line, const char* key) {
  const Json* value = line.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

std::optional<Candidate> candidate_of(const Json* family, const Json* degree) {
  if (family == nullptr || degree == nullptr || !family->is_string() || family->as_string().empty())
    return std::nullopt;
  if (!degree->is_int() || degree->as_int() < 1 || degree->as_int() > 1 << 20) return std::nullopt;
  return Candidate{family->as_string(), static_cast<int>(degree->as_int())};
}

/// [family, degree, us, lo_us, hi_us]
std::optional<Alternative> alternative_of(const Json& row) {
  if (!row.is_array() || row.as_array().size() != 5) return std::nullopt;
  const Json::Array& cells = row.as_array();
  const auto candidate = candidate_of(&cells[0], &cells[1]);
  if (!candidate) return std::nullopt;
  double us[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    if (!cells[i + 2].is_number()) return std::nullopt;
    us[i] = cells[i + 2].as_double();
    if (!(us[i] > 0) || !std::isfinite(us[i])) return std::nullopt;
  }
  return Alternative{*candidate, us[0], us[1], us[2]};
}

std::optional<Decision> decision_of_json(const Json& line) {
  const auto candidate = candidate_of(line.find("family"), line.find("degree"));
  const auto tier = tier_of(text_of(line, "tier"));
  const Json* others = line.find("others");
  if (!candidate || !tier || others == nullptr || !others->is_array()) return std::nullopt;
  Decision out{*candidate, *tier, text_of(line, "reason")};
  for (const Json& row : others->as_array()) {
    const auto other = alternative_of(row);
    if (!other) return std::nullopt;
    out.others.push_back(*other);
  }
  return out;
}

int version_of(const Json& line) {
  const Json* version = line.find("overlace_plan");
  return version != nullptr && version->is_int() ? static_cast<int>(version->as_int()) : 0;
}

constexpr std::string_view kBegin = "{\"overlace_plan\"";  // of every line, damaged ones too

/// What the file holds; none, with a warning, where it cannot be read or is none of ours: such a file is left alone.
std::optional<std::string> read_own(const std::string& path) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::not_found) return std::string();
  std::string why;
  if (kind != std::filesystem::file_type::regular) {  // a pipe would be waited for, a device has no end
    why = path + " is no regular file";
  } else if (base::Result<std::string> text = base::read_file(path); !text.ok()) {
    why = text.status().message();
  } else if (text->empty() || text->starts_with(kBegin) ||
             text->find("\n" + std::string(kBegin)) != std::string::npos) {
    return std::move(*text);
  } else {
    why = path + " holds something else";
  }
  base::warn_once("plan", why + "; plans are not kept");
  return std::nullopt;
}

/// Its lines, parsed; null for a damaged one.
std::vector<std::pair<std::string, Json>> lines_of(const std::string& text, const std::string& path) {
  std::vector<std::pair<std::string, Json>> out;
  size_t damaged = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.empty()) continue;
    base::Result<Json> json = Json::parse(line, path);
    const bool is_good = json.ok() && json->is_object() && version_of(*json) > 0;
    damaged += is_good ? 0 : 1;
    out.emplace_back(std::move(line), is_good ? std::move(*json) : Json());
  }
  if (damaged > 0)
    base::warn_once(
        "plan", base::format("{}: {} of {} lines are damaged; these plans are made anew", path, damaged, out.size()));
  return out;
}

/// Keeps other processes from writing between our reading and our writing. A lock of its own file: the other is
/// replaced.
class Lock {
 public:
  explicit Lock(const std::string& path) : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    const auto deadline = std::chrono::steady_clock::now() + kLockWait;
    while (fd_ >= 0 && !is_held_) {
      is_held_ = ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
      if (is_held_ || (errno != EWOULDBLOCK && errno != EINTR) || std::chrono::steady_clock::now() > deadline) return;
      std::this_thread::sleep_for(kLockPause);
    }
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() {
    if (fd_ >= 0) ::close(fd_);
  }
  bool is_held() const { return is_held_; }

 private:
  int fd_;
  bool is_held_ = false;
};

}  // namespace

Cache::Cache(std::string path, const spec::Machine& machine)
    : path_(std::move(path)), machine_(machine.name), digest_(spec::digest(machine)) {}

Cache Cache::of_text(const std::string& text, const spec::Machine& machine) {
  Cache out("", machine);
  for (auto& [line, json] : lines_of(text, "kept plans"))
    if (out.counts(json)) out.lines_[text_of(json, "key")] = std::move(line);
  return out;
}

Cache Cache::shipped(const spec::Machine& machine) {
  std::string lines;
  for (int i = 0; i < kNumShippedPlans; ++i)
    if (kShippedPlans[i].machine == machine.name) lines.append(kShippedPlans[i].line).push_back('\n');
  return of_text(lines, machine);
}

bool Cache::counts(const Json& line) const {
  return text_of(line, "digest") == digest_ && version_of(line) == kPlanVersion;
}

std::string Cache::text() const {
  std::string out;
  if (!is_on()) return out;
  for (const auto& [line, json] : lines_of(read_own(path_).value_or(""), path_))
    if (counts(json)) out += line + "\n";
  return out;
}

std::string Cache::find(const std::string& key) const {
  if (const auto known = lines_.find(key); known != lines_.end()) return known->second;
  if (!is_on()) return {};
  std::string out;
  for (const auto& [line, json] : lines_of(read_own(path_).value_or(""), path_)) {
    if (text_of(json, "key") == key && counts(json)) out = line;
  }
  return out;
}

void Cache::put(const std::string& key, const Decision& decision) const {
  if (!is_on() || !read_own(path_)) return;  // no lock beside a file of others
  const Lock lock(path_ + ".lock");
  if (!lock.is_held()) {
    base::warn_once("plan", path_ + ".lock cannot be had; plans are not kept");
    return;
  }
  const std::optional<std::string> before = read_own(path_);
  if (!before) return;
  std::vector<std::string> kept;
  for (const auto& [line, json] : lines_of(*before, path_)) {
    const bool is_stale = json.is_null() || version_of(json) != kPlanVersion ||
                          (text_of(json, "machine") == machine_ && text_of(json, "digest") != digest_);
    const bool is_replaced = text_of(json, "key") == key && text_of(json, "digest") == digest_;
    if (!is_stale && !is_replaced) kept.push_back(line);
  }
  Json line = Json::object(), others = Json::array();
  line.set("overlace_plan", kPlanVersion).set("machine", machine_).set("digest", digest_).set("key", key);
  line.set("tier", to_string(decision.tier)).set("family", decision.candidate.family);
  line.set("degree", decision.candidate.degree).set("reason", decision.reason);
  for (const Alternative& a : decision.others)
    others.push_back(Json::array({a.candidate.family, a.candidate.degree, a.us, a.lo_us, a.hi_us}));
  line.set("others", std::move(others));
  kept.push_back(line.dump());
  std::string text;
  for (size_t i = kept.size() > kMostLines ? kept.size() - kMostLines : 0; i < kept.size(); ++i) text += kept[i] + "\n";
  const base::Status written = base::write_file(path_, text);
  if (!written.ok()) base::warn_once("plan", written.message() + "; plans are not kept");
}

std::optional<Decision> decision_of(const std::string& line, const std::string& key, const spec::Machine& machine) {
  if (line.empty()) return std::nullopt;
  const base::Result<Json> json = Json::parse(line, "plan");
  if (!json.ok() || version_of(*json) != kPlanVersion) return std::nullopt;
  if (text_of(*json, "key") != key || text_of(*json, "digest") != spec::digest(machine)) return std::nullopt;
  std::optional<Decision> out = decision_of_json(*json);
  if (!out) base::warn_once("plan", "the kept plan for " + key + " is damaged; it is made anew");
  return out;
}

}  // namespace overlace::plan
