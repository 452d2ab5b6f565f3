#include "bench/common/protocol.h"

#include <algorithm>

#include "src/base/ceil_div_pod.h"
#include "src/base/statistics.h"
#include "src/base/timing.h"

namespace overlace::bench {
namespace {

using base::Json;

constexpr double kSettledShare = 0.01;  // by which the SM clock may still move from turn to turn
constexpr size_t kSettledTurns = 3;

class Protocol {
 public:
  Protocol(std::vector<Entrant>& entrants, Subject& subject, Crew& crew, const ProtocolOptions& options)
      : entrants_(entrants), subject_(subject), crew_(crew), options_(options) {}

  base::Result<Outcome> run() {
    OVERLACE_TRY(verify(&Entrant::before));
    if (!options_.verify_only) {
      OVERLACE_TRY(warm_up());
      OVERLACE_TRY(measure());
      OVERLACE_TRY(verify(&Entrant::after));
    }
    for (Entrant& x : entrants_) {
      if (x.status != "wrong") continue;
      ++outcome_.wrong;
      x.samples_us.clear();
    }
    return outcome_;
  }

 private:
  base::Status verify(Check Entrant::*check) {
    for (size_t i = 0; i < entrants_.size(); ++i) {
      Entrant& x = entrants_[i];
      if (x.status != "ok") continue;
      const base::Result<std::string> wrong = x.has_output ? subject_.verify(i, &(x.*check)) : run_once(i);
      if (wrong.status().code() == Errc::not_supported) {
        x.status = "unsupported";
        x.reason = wrong.status().message();
        continue;
      }
      if (!wrong.ok()) return wrong.status();
      if (wrong->empty()) continue;
      x.status = "wrong";
      x.reason = *wrong;
    }
    return {};
  }

  base::Result<std::string> run_once(size_t which) {
    OVERLACE_TRY(subject_.enqueue(which, 0));
    OVERLACE_TRY(crew_.synchronize());
    return std::string();
  }

  /// Whole launches.
  int whole(int calls) const {
    const int each = subject_.calls_per_launch();
    return base::round_up(calls, each);
  }

  /// `calls` are whole launches.
  base::Status burst(size_t which, int calls, double* sample_us, double* host_us) {
    OVERLACE_TRY(crew_.synchronize());
    OVERLACE_TRY(crew_.barrier());
    const int lead = whole(std::max(1, calls / 5));
    for (int i = 0; i < lead; ++i) OVERLACE_TRY(subject_.enqueue(which, i));
    OVERLACE_TRY(crew_.record_begin());
    const double start = crew_.now_s();
    for (int i = 0; i < calls; ++i) OVERLACE_TRY(subject_.enqueue(which, lead + i));
    const double host_s = crew_.now_s() - start;
    OVERLACE_TRY(crew_.record_end());
    const auto elapsed = crew_.elapsed_us();
    if (!elapsed.ok()) return elapsed.status();
    OVERLACE_TRY(worst(*elapsed / calls, sample_us));
    return worst(host_s * 1e6 / calls, host_us);
  }

  base::Status worst(double mine, double* all) {
    const auto result = crew_.max_over_ranks(mine);
    if (!result.ok()) return result.status();
    *all = *result;
    return {};
  }

  /// All in turn until the least time is over and the SM clock moves no more.
  base::Status warm_up() {
    const double begin = crew_.now_s();
    std::vector<double> mhz;
    for (double is_over = 0; is_over == 0;) {
      for (size_t i = 0; i < entrants_.size(); ++i) {
        Entrant& x = entrants_[i];
        if (x.status != "ok") continue;
        double sample = 0, host = 0;
        OVERLACE_TRY(burst(i, whole(options_.least_calls), &sample, &host));
        const double wanted =
            base::burst_calls(options_.burst_ms * 1e3, sample, options_.least_calls, options_.most_calls);
        x.calls = whole(static_cast<int>(wanted));
      }
      const ClockSample clocks = crew_.clocks();
      mhz.push_back(clocks.sm_mhz);
      const double spent = crew_.now_s() - begin;
      const bool has_settled = !clocks.ok || is_settled(mhz);
      const bool is_late = spent > options_.warm_s + options_.settle_s;
      // The slowest rank decides, so that all leave in the same turn.
      double wants_more = 0, is_unsettled = 0;
      OVERLACE_TRY(worst(spent < options_.warm_s || (!has_settled && !is_late) ? 1 : 0, &wants_more));
      OVERLACE_TRY(worst(has_settled ? 0 : 1, &is_unsettled));
      is_over = 1 - wants_more;
      outcome_.unsettled = is_unsettled > 0;
    }
    return {};
  }

  static bool is_settled(const std::vector<double>& mhz) {
    if (mhz.size() < kSettledTurns) return false;
    const auto [least, most] = std::minmax_element(mhz.end() - kSettledTurns, mhz.end());
    return *most - *least < kSettledShare * *most;
  }

  base::Status measure() {
    return base::interleave(entrants_.size(), options_.repetitions, options_.seed, [&](int, size_t i) -> base::Status {
      Entrant& x = entrants_[i];
      if (x.status != "ok") return {};
      double sample = 0, host = 0;
      OVERLACE_TRY(burst(i, x.calls, &sample, &host));
      x.samples_us.push_back(sample);
      x.host_us.push_back(host);
      x.clocks.push_back(crew_.clocks());
      return {};
    });
  }

  std::vector<Entrant>& entrants_;
  Subject& subject_;
  Crew& crew_;
  const ProtocolOptions& options_;
  Outcome outcome_;
};

Json range_json(const std::vector<ClockSample>& samples, double ClockSample::*what) {
  std::vector<double> values;
  for (const ClockSample& one : samples) values.push_back(one.*what);
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  Json range = Json::object();
  return range.set("median", base::median(values)).set("min", *least).set("max", *most);
}

}  // namespace

base::Result<Outcome> run_case(std::vector<Entrant>* entrants, Subject& subject, Crew& crew,
                               const ProtocolOptions& options) {
  return Protocol(*entrants, subject, crew, options).run();
}

Json clocks_json(const std::vector<ClockSample>& samples) {
  Json clocks = Json::object();
  if (samples.empty()) return clocks;
  uint64_t reasons = 0;
  for (const ClockSample& one : samples) reasons |= one.throttle;
  clocks.set("sm_mhz", range_json(samples, &ClockSample::sm_mhz));
  clocks.set("memory_mhz", range_json(samples, &ClockSample::memory_mhz));
  clocks.set("watts", range_json(samples, &ClockSample::watts));
  clocks.set("celsius", range_json(samples, &ClockSample::celsius));
  return clocks.set("throttle", reasons);
}

}  // namespace overlace::bench
