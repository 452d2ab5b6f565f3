#include "src/exec/arrows.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "src/exec/run.h"

namespace overlace::exec {
namespace {

bool is_sent_half(const base::Arrow& a) { return a.to_ns == 0 && a.name.find('@') != std::string::npos; }
bool is_seen_half(const base::Arrow& a) { return a.from_ns == 0 && a.name.find('@') != std::string::npos; }

/// How far the clocks of two GPUs may be apart after both were placed on the host's.
constexpr int64_t kClockErrorNs = 20000;

/// The last add before the word was seen is the one that satisfied the wait; by clocks that disagree even the first may
/// look late. Null: none of them.
const base::Arrow* source_of(const base::Arrow& seen, const std::vector<const base::Arrow*>& halves) {
  const base::Arrow* last = nullptr;
  const base::Arrow* first = nullptr;
  for (const base::Arrow* s : halves) {
    if (s->from_ns <= seen.to_ns && (last == nullptr || s->from_ns > last->from_ns)) last = s;
    if (first == nullptr || s->from_ns < first->from_ns) first = s;
  }
  if (last != nullptr) return last;
  return first->from_ns - seen.to_ns <= kClockErrorNs ? first : nullptr;
}

}  // namespace

base::Arrow sent_half(const std::string& word, uint64_t call, int from, const std::string& lane, int64_t ns, int to) {
  return {.name = base::format("{}@{}", word, call),
          .from_rank = from,
          .from_lane = lane,
          .from_ns = ns,
          .to_rank = to,
          .to_lane = {},
          .to_ns = 0};
}

base::Arrow seen_half(const std::string& word, uint64_t call, int from, int to, const std::string& lane, int64_t ns) {
  return {.name = base::format("{}@{}", word, call),
          .from_rank = from,
          .from_lane = {},
          .from_ns = 0,
          .to_rank = to,
          .to_lane = lane,
          .to_ns = ns};
}

void join_arrows(base::Trace& trace) {
  using Key = std::tuple<std::string, int, int>;  // name@call, from, to
  std::map<Key, std::vector<const base::Arrow*>> sent;
  for (const base::Arrow& a : trace.arrows) {
    if (is_sent_half(a)) sent[{a.name, a.from_rank, a.to_rank}].push_back(&a);
  }
  std::vector<base::Arrow> whole;
  for (const base::Arrow& a : trace.arrows) {
    if (is_sent_half(a)) continue;
    if (!is_seen_half(a)) {
      whole.push_back(a);
      continue;
    }
    const auto halves = sent.find({a.name, a.from_rank, a.to_rank});
    if (halves == sent.end()) continue;
    const base::Arrow* source = source_of(a, halves->second);
    if (source == nullptr) continue;
    base::Arrow joined = a;
    joined.name = a.name.substr(0, a.name.find('@'));
    joined.from_lane = source->from_lane;
    joined.from_ns = source->from_ns;
    joined.to_ns = std::max(a.to_ns, source->from_ns);
    whole.push_back(std::move(joined));
  }
  trace.arrows = std::move(whole);
}

}  // namespace overlace::exec
