#include "bench/dense/operators.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "bench/common/arguments.h"
#include "overlace/error.h"
#include "overlace/plan.h"
#include "overlace/team.h"
#include "src/base/ceil_div_pod.h"
#include "src/spec/operators.h"

namespace overlace::bench {
namespace {

constexpr const char* kCandidates = "candidates";  // a competitor that stands for all of the planner's
constexpr double kLargestRmsError = 0.01;          // of the competitor that the others are compared with

double ulp_of(DType dtype) { return std::ldexp(1.0, dtype == DType::bf16 ? -8 : dtype == DType::fp16 ? -11 : -23); }

/// "family", "family:q" or "family:q:option=number:...": a family, its degree, options of make_schedule.
spec::Schedule schedule_of(const spec::OpSpec& op, const std::string& name) {
  const std::vector<std::string> parts = split(name, ':');
  const auto number = [&](const std::string& text) {
    try {
      return std::stoll(text);
    } catch (const std::exception&) {
      throw_error(Errc::invalid_argument, base::format("{}: wanted a number, got {}", name, text));
    }
  };
  spec::Params options;
  for (size_t i = 2; i < parts.size(); ++i) {
    const std::vector<std::string> option = split(parts[i], '=');
    if (option.size() != 2) throw_error(Errc::invalid_argument, name + ": wanted option=number, got " + parts[i]);
    options[option[0]] = int64_t{number(option[1])};
  }
  return spec::make_schedule(op, parts[0], parts.size() > 1 ? static_cast<int>(number(parts[1])) : 1, options);
}

std::string without_copy_number(const std::string& name) { return name.substr(0, name.find('@')); }

/// The candidate as --competitors takes it.
std::string spelled(const plan::Candidate& candidate) {
  return spec::has_degree(candidate.family) ? base::format("{}:{}", candidate.family, candidate.degree)
                                            : candidate.family;
}

/// A bound, which has no result of its own.
bool is_part(std::string_view name) {
  return std::any_of(std::begin(spec::kPurposeNames), std::end(spec::kPurposeNames), [&](std::string_view purpose) {
    return purpose == name && purpose != spec::name_of(spec::Purpose::plan);
  });
}

}  // namespace

base::Status Operators::open_context(Runtime& runtime) {
  context_ = Context::open(runtime);
  const spec::Machine& machine = context_->machine();
  if (machine.has_costs() || machine.gemm.sustained_TFLOPs.value > 0) return {};
  const base::Result<double> flops = measure_flops();
  if (!flops.ok()) return flops.status();
  const double link = machine.copy.all_GBps.value * 1e9;
  context_ = Context::open(runtime, {.rates = spec::MachineRates{machine.is_gpu, link, *flops, machine.hosts}});
  return {};
}

base::Result<double> Operators::measure_flops() {
  const spec::Schedule compute = spec::make_bound(workload_.op(), spec::Purpose::compute);
  double best_us = 0;
  for (int i = 0; i < 3; ++i) {
    OVERLACE_TRY(crew_.barrier());
    OVERLACE_TRY(crew_.record_begin());
    OVERLACE_TRY(workload_.enqueue(compute, i));
    OVERLACE_TRY(crew_.record_end());
    const auto mine = crew_.elapsed_us();
    if (!mine.ok()) return mine.status();
    const auto worst = crew_.max_over_ranks(*mine);
    if (!worst.ok()) return worst.status();
    best_us = i == 0 ? *worst : std::min(best_us, *worst);
  }
  return workload_.flops() / best_us * 1e6;
}

base::Status Operators::resolve(const std::string& name, spec::Schedule* schedule, std::string* reason) {
  const std::string plain = without_copy_number(name);
  const std::string family = plain == "wrong" ? std::string(spec::kLibrary) : plain;
  try {
    if (family == "auto") {
      const std::shared_ptr<const plan::Plan> plan = context_.value().plan(workload_.op());
      *schedule = plan->schedule;
      *reason = plan->reason;
    } else {
      *schedule = schedule_of(workload_.op(), family);
    }
  } catch (...) {
    return base::status_of_current_exception();
  }
  if (schedule->family.starts_with(spec::kLibrary) && channel_.team().size() > 1 && channel_.team().net() == nullptr)
    return base::error(Errc::not_supported, "there is no engine of collectives");
  return {};
}

void Operators::expand_candidates() {
  std::vector<std::string> list;
  const auto add = [&](const std::string& name) {
    if (std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
  };
  for (const std::string& name : names_) {
    if (name != kCandidates) add(name);
    if (name != kCandidates) continue;
    for (const plan::Candidate& one : plan::candidates(workload_.op(), context_->machine())) add(spelled(one));
  }
  names_ = std::move(list);
}

std::vector<Entrant> Operators::entrants() {
  expand_candidates();
  std::vector<Entrant> list;
  schedules_.clear();
  same_bits_.assign(names_.size(), false);
  replays_.assign(names_.size(), {});
  for (const std::string& name : names_) {
    Entrant x{name};
    x.has_output = !is_part(without_copy_number(name));
    spec::Schedule schedule;
    if (const base::Status status = resolve(name, &schedule, &x.reason); !status.ok()) {
      x.status = "unsupported";
      x.reason = status.message();
    }
    schedules_.push_back(std::move(schedule));
    list.push_back(std::move(x));
  }
  return list;
}

base::Status Operators::capture(size_t which) {
  OVERLACE_TRY(call(which, 0));
  OVERLACE_TRY(crew_.synchronize());
  const int each = calls_per_launch();
  for (int first = 0; first < (chains_ ? 1 : workload_.sets()); ++first) {
    auto replay = graphs_->capture([&] {
      for (int i = 0; i < each; ++i) OVERLACE_TRY(call(which, first + i));
      return base::Status();
    });
    if (!replay.ok()) return base::error(Errc::not_supported, "as a graph: {}", replay.status().message());
    replays_[which].push_back(std::move(*replay));
  }
  return {};
}

base::Status Operators::enqueue(size_t which, int turn) {
  if (graphs_ == nullptr) return call(which, turn);
  if (replays_[which].empty()) OVERLACE_TRY(capture(which));
  if (turn % calls_per_launch() != 0) return {};
  return replays_[which][static_cast<size_t>(turn) % replays_[which].size()]();
}

/// Enough that what a launch of a graph costs is not seen.
int Operators::calls_per_launch() const {
  constexpr int kLeast = 16;
  const int sets = workload_.sets();
  return chains_ ? base::round_up(kLeast, sets) : 1;
}

base::Status Operators::call(size_t which, int turn) {
  OVERLACE_TRY(workload_.enqueue(schedules_[which], turn));
  return without_copy_number(names_[which]) == "wrong" ? workload_.damage(turn) : base::Status();
}

base::Result<std::string> Operators::agree(bool good, const std::string& complaint) {
  const auto worst = crew_.max_over_ranks(good ? 0 : 1);
  if (!worst.ok()) return worst.status();
  if (*worst == 0) return std::string();
  return good ? std::string("another rank's output is wrong") : complaint;
}

base::Result<std::string> Operators::verify(size_t which, Check* check) {
  // Before the output is poisoned: what the call of a capture leaves must not pass for that of a replay.
  if (graphs_ != nullptr && replays_[which].empty()) OVERLACE_TRY(capture(which));
  const auto found = workload_.verify([&] { return enqueue(which, 0); });
  if (!found.ok()) return found.status();
  *check = *found;
  const bool is_first = !first_ || *first_ == which;
  if (is_first) {
    first_ = which;
    baseline_ = *check;
    OVERLACE_TRY(workload_.keep_reference());
  }
  // Twice the error of the unfused path of the same precision, plus an ulp of the largest values (about 4 rms).
  const double ulp = ulp_of(case_.dtype);
  const bool good = check->finite && check->rms_error <= 2 * baseline_.rms_error + ulp / 16 &&
                    check->max_error <= 2 * baseline_.max_error + 4 * ulp && check->rms_error < kLargestRmsError;
  const auto verdict =
      agree(good, base::format("rms error {:.3g}, that of {} {:.3g}; largest {:.3g} and {:.3g}", check->rms_error,
                               names_[*first_], baseline_.rms_error, check->max_error, baseline_.max_error));
  if (!verdict.ok() || !verdict->empty() || is_first) return verdict;
  return compare(which);
}

base::Result<std::string> Operators::compare(size_t which) {
  const auto difference = workload_.difference();
  if (!difference.ok()) return difference.status();
  same_bits_[which] = difference->same_bits;
  // Four roundings of the largest values, or what sums in another order err. Products of two sums are up to 40 rms, as
  // are a norm's of two normal values.
  const double largest = case_.activation == spec::Activation::swiglu || spec::flow_of(case_.op).norms ? 8 : 1;
  const double bound = std::max(16 * largest * ulp_of(case_.dtype), 8 * baseline_.max_error) * difference->rms;
  return agree(difference->max_abs <= bound,
               base::format("an element differs from that of {} by {:.3g}, wanted at most {:.3g}", names_[*first_],
                            difference->max_abs, bound));
}

}  // namespace overlace::bench
