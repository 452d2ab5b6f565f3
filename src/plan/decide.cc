#include "src/plan/decide.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "src/base/format.h"
#include "src/plan/pick.h"
#include "src/plan/recurrence.h"
#include "src/spec/heap_layout.h"
#include "src/spec/operators.h"

namespace overlace::plan {

Alternative with_band(const spec::OpSpec& op, const spec::Machine& machine, Tier tier, const Candidate& candidate,
                      double us) {
  const double error = p90_error(errors_of(machine, tier), op, candidate.family);
  return {candidate, us, us / (1 + error), us * (1 + error)};
}

bool fits(const spec::OpSpec& op, const Candidate& candidate, uint64_t heap_bytes, const spec::Params& options) {
  if (heap_bytes == 0 || candidate.family == spec::kLibrary) return true;
  return spec::heap_bytes(spec::make_schedule(op, candidate.family, candidate.degree, options), op.ranks) <= heap_bytes;
}

void rank(std::vector<Alternative>* list) {
  std::stable_sort(list->begin(), list->end(), [](const Alternative& a, const Alternative& b) { return a.us < b.us; });
}

Decision estimated(const spec::OpSpec& op, const spec::Machine& machine) {
  Decision out;
  out.tier = Tier::recurrence;
  const Recurrence recurrence(op, machine);
  for (const Candidate& candidate : candidates(op, machine)) {
    const std::optional<double> us = recurrence.us(candidate);
    if (us && std::isfinite(*us) && *us > 0)
      out.others.push_back(with_band(op, machine, Tier::recurrence, candidate, *us));
  }
  rank(&out.others);
  return out;
}

void settle(const spec::OpSpec& op, const spec::Machine& machine, Decision* decision) {
  const std::vector<Alternative>& others = decision->others;
  const std::optional<Pick> picked = pick(op, errors_of(machine, decision->tier), others);
  std::string& reason = decision->reason;
  if (!picked) {
    decision->candidate = {std::string(spec::kLibrary), 1};
    reason = "no model of the library's own path on this machine: library";
    return;
  }
  const Alternative& best = others[picked->best];
  decision->candidate = others[picked->chosen].candidate;
  if (best.candidate.family == spec::kLibrary) {
    reason = base::format("library {:.1f} us, nothing is faster", best.us);
  } else if (picked->chosen != picked->best) {
    reason = base::format("{} {:.1f} us, library {:.1f} us: a gain of {:.1f} % is too little: library",
                          to_string(best.candidate), best.us, others[picked->chosen].us, 100 * picked->gain);
  } else {
    reason = base::format("{} {:.1f} us, {:.1f} % less than library", to_string(best.candidate), best.us,
                          100 * picked->gain);
    if (others.size() > 1) {
      const Alternative& next = others[picked->best == 0 ? 1 : 0];
      const char* why = next.us >= best.us                               ? "next"
                        : next.candidate.family == best.candidate.family ? "too little gained by"
                                                                         : "less sure";
      reason += base::format("; {} {} {:.1f} us", why, to_string(next.candidate), next.us);
    }
  }
  reason = base::format("{}: {} ({}{}{})", to_string(decision->tier), reason, machine.name,
                        machine.date.empty() ? "" : " of ", machine.date);
}

}  // namespace overlace::plan
