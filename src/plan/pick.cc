#include "src/plan/pick.h"

#include <algorithm>
#include <tuple>

#include "overlace/operator.h"

namespace overlace::plan {
namespace {

constexpr double kLeastGain = 0.02;   // of a time: less is within any model's error
constexpr double kTie = 0.005;        // estimates this close say nothing
constexpr double kPriorP90 = 0.2;     // where the machine file has none
constexpr double kPriorMedian = 0.1;  // of a family that was not measured

const spec::ModelError* find(const spec::Machine::Errors& errors, const spec::OpSpec& op, std::string_view family) {
  const auto by_op = errors.find(op.op);
  if (by_op == errors.end()) return nullptr;
  const auto found = by_op->second.find(family);
  return found == by_op->second.end() ? nullptr : &found->second;
}

}  // namespace

const spec::Machine::Errors& errors_of(const spec::Machine& machine, Tier tier) {
  static const spec::Machine::Errors kNone;
  if (tier == Tier::probe) return kNone;
  return tier == Tier::recurrence ? machine.recurrence_errors : machine.errors;
}

double median_error(const spec::Machine::Errors& errors, const spec::OpSpec& op, std::string_view family) {
  const spec::ModelError* error = find(errors, op, family);
  return error != nullptr ? error->p50 : kPriorMedian;
}

double p90_error(const spec::Machine::Errors& errors, const spec::OpSpec& op, std::string_view family) {
  const spec::ModelError* error = find(errors, op, family);
  return error != nullptr ? error->p90 : kPriorP90;
}

std::optional<Pick> pick(const spec::OpSpec& op, const spec::Machine::Errors& errors,
                         const std::vector<Alternative>& list) {
  const auto library =
      std::find_if(list.begin(), list.end(), [](const Alternative& a) { return a.candidate.family == spec::kLibrary; });
  if (library == list.end()) return std::nullopt;
  const auto is_less = [](const Alternative& a, const Alternative& b) { return a.us < b.us; };
  const double least = std::min_element(list.begin(), list.end(), is_less)->us;
  const auto is_tie = [&](const Alternative& a) { return a.us <= least * (1 + kTie); };
  const auto key = [&](const Alternative& a) {
    return std::tuple(!is_tie(a), median_error(errors, op, a.candidate.family), a.us);
  };
  const auto first = std::min_element(list.begin(), list.end(),
                                      [&](const Alternative& a, const Alternative& b) { return key(a) < key(b); });
  const auto gain = [&](const auto& it) { return 1 - it->us / library->us; };
  auto best = first;
  for (auto it = list.begin(); it != list.end(); ++it) {
    const bool is_coarser =
        it->candidate.family == first->candidate.family && it->candidate.degree < best->candidate.degree;
    const bool is_close = first->us >= it->us * (1 - kLeastGain);
    const bool still_gains = gain(it) >= kLeastGain || gain(first) < kLeastGain;
    if (is_coarser && is_close && still_gains) best = it;
  }
  Pick out;
  out.best = static_cast<size_t>(best - list.begin());
  out.gain = gain(best);
  out.chosen = out.gain < kLeastGain ? static_cast<size_t>(library - list.begin()) : out.best;
  return out;
}

}  // namespace overlace::plan
