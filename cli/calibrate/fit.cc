#include "cli/calibrate/fit.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "src/base/statistics.h"
#include "src/plan/recurrence.h"
#include "src/sim/schedule/simulation.h"
#include "src/spec/costs.h"
#include "src/study/gemm/minimize.h"

namespace overlace::cli {
namespace {

using base::Result;
using base::Status;
using spec::Figure;
using spec::Machine;
using spec::Source;

constexpr double kBytesPerUs = 1e3;     // of a GB/s
constexpr double kLeastUs = 1e-3;       // files hold no zeros
constexpr double kLeastRowUs = 1e-6;    // a copy has hundreds of them
constexpr double kLeastFactor = 1.005;  // of contention
constexpr double kMostFactor = 1000;    // that a machine file may have: on a machine busy with something else
constexpr double kMostSeen = 0.3;       // off, of kinds of a point or two: 2 us of 9, of bursts of 400
constexpr double kMostUnknown = 0.2;    // off, of points that are not known well
constexpr int kCalls = 4;               // of a simulated burst
constexpr size_t kLeastSamplesOfFit = 3, kLeastPoints = 4;
// Spread, from the fast side of the samples: the slow side has what else ran. Sigmas between the two percentiles.
constexpr double kSpreads = 2;
// A median of n samples of a normal distribution: its standard error, times sqrt(n), of the distance of the quartiles.
constexpr double kMedianError = 0.929;
constexpr double kFastest = 10, kFast = 25, kFastSigmas = 0.607;

constexpr const char* kProbeNames[] = {"lead",       "call",       "chain",      "reduce",      "gemm",
                                       "pair",       "ring",       "all",        "local",       "rows",
                                       "fork",       "post",       "link",       "signal",      "wait",
                                       "flag",       "event",      "barrier",    "all_gather",  "reduce_scatter",
                                       "all_reduce", "all_to_all", "gemm_in",    "reduce_in",   "gemm_out",
                                       "copy_out",   "host_call",  "host_chain", "host_copies", "host_collective",
                                       "store",      "tma",        "memory",     "duty",        "skew",
                                       "operators"};

const Point* find(const std::vector<Point>& points, Probe probe) {
  const auto found = std::find_if(points.begin(), points.end(), [&](const Point& p) { return p.probe == probe; });
  return found == points.end() ? nullptr : &*found;
}

/// The point of what stands in front of the items of `p`.
const Point* lead_of(const std::vector<Point>& points, const Point& p) {
  const auto found = std::find_if(points.begin(), points.end(), [&](const Point& one) {
    return one.probe == Probe::lead && p.lead > 0 && one.count == p.lead;
  });
  return found == points.end() ? nullptr : &*found;
}

/// Timed as bursts are: GPUs are queued ahead of, CPU ranks are not. Where ranks do different things, the last of some
/// calls would have nothing beside it.
std::optional<double> simulated_us(const Machine& machine, const Point& p) {
  const auto found = sim::try_simulate(p.schedule, machine, {.calls = machine.is_gpu && p.copies == 0 ? kCalls : 1});
  return found.ok() ? std::optional(found->us()) : std::nullopt;
}

/// Four digits say all that a measurement does.
double rounded(double value) {
  if (!(value > 0) || !std::isfinite(value)) return value;
  return std::strtod(base::format("{:.4g}", value).c_str(), nullptr);
}

Figure measured(double value, double least = kLeastUs) { return {rounded(std::max(value, least)), Source::measured}; }

class Fitter {
 public:
  Fitter(const std::vector<Point>& points, Machine* machine) : points_(points), m_(*machine) {}

  Status run() {
    OVERLACE_TRY(check());
    OVERLACE_TRY(calls());
    if (const auto us = item_us(Probe::barrier)) m_.latency.barrier_us = measured(barrier_ = *us);
    host();
    fork();
    OVERLACE_TRY(copies());
    pushes();
    OVERLACE_TRY(reductions());
    latencies();
    collectives();
    OVERLACE_TRY(products());
    contention();
    noise();
    return {};
  }

 private:
  Status check() const {
    std::map<Probe, size_t> fitted;
    for (const Point& p : points_) {
      if (p.samples_us.size() < kLeastSamplesOfFit)
        return base::invalid_argument("calibrate: {} has {} samples at {} bytes, wanted at least {}", name_of(p.probe),
                                      p.samples_us.size(), p.bytes, kLeastSamplesOfFit);
      for (const double us : p.samples_us)
        if (!(us > 0) || !std::isfinite(us))
          return base::invalid_argument("calibrate: {} took {} us at {} bytes, wanted a positive time",
                                        name_of(p.probe), us, p.bytes);
      if (const Point* lead = lead_of(points_, p); lead != nullptr && p.us() <= lead->us())
        return base::invalid_argument("calibrate: {} took {} us at {} bytes, wanted more than the {} us of its lead",
                                      name_of(p.probe), p.us(), p.bytes, lead->us());
      fitted[p.probe] += p.is_held_out ? 0 : 1;
    }
    for (const Probe needed : {Probe::gemm, Probe::pair, Probe::reduce})
      if (fitted[needed] < kLeastPoints)
        return base::invalid_argument("calibrate: {} has {} points that are not held out, wanted at least {}",
                                      name_of(needed), fitted[needed], kLeastPoints);
    return {};
  }

  /// What a call costs besides its work, and one more tiny kernel.
  Status calls() {
    const Point *lead = one(Probe::lead), *call = one(Probe::call), *chain = one(Probe::chain);
    if (chain == nullptr || (lead == nullptr && call == nullptr))
      return base::invalid_argument("calibrate: no points of chain and of lead or call, wanted both");
    if (lead != nullptr) {
      const auto longer = std::find_if(points_.begin(), points_.end(),
                                       [&](const Point& p) { return p.probe == Probe::lead && p.count > lead->count; });
      if (longer == points_.end()) return base::invalid_argument("calibrate: lead has one length, wanted two");
      const double us = lead->us();
      call_ = std::max(us - lead->count * (longer->us() - us) / (longer->count - lead->count), kLeastUs);
      tiny_ = item_us(*chain);
    } else {
      tiny_ = std::max((chain->us() - call->us()) / (chain->count - 1), kLeastUs);
      call_ = std::max(call->us() - tiny_, kLeastUs);
    }
    m_.latency.call_us = measured(call_);
    return {};
  }

  const Point* one(Probe probe) const { return find(points_, probe); }
  const Point* one(Probe probe, double bytes) const {
    const auto found = std::find_if(points_.begin(), points_.end(),
                                    [&](const Point& p) { return p.probe == probe && p.bytes == bytes; });
    return found == points_.end() ? nullptr : &*found;
  }
  /// Time of one of the items of a call.
  double item_us(const Point& p) const { return std::max(work_us(p) / p.count, kLeastUs); }
  double work_us(const Point& p) const {
    const Point* lead = lead_of(points_, p);
    return p.us() - (lead != nullptr ? lead->us() : call_) - (p.has_barrier ? barrier_ : 0) -
           (is_copy(p.probe) ? fork_ : 0);
  }
  static bool is_copy(Probe probe) { return probe >= Probe::pair && probe <= Probe::link; }
  std::optional<double> item_us(Probe probe) const {
    const Point* p = one(probe);
    if (p == nullptr) return std::nullopt;
    return item_us(*p);
  }
  struct Sweep {
    std::vector<double> bytes, us;
  };
  /// Bytes and times of points that are not held out.
  Sweep sweep(Probe probe) const {
    Sweep out;
    for (const Point& p : points_) {
      if (p.probe != probe || p.is_held_out) continue;
      out.bytes.push_back(p.bytes);
      out.us.push_back(item_us(p));
    }
    return out;
  }
  static Status check_slope(Probe probe, const study::Line& line) {
    if (line.slope > 0) return {};
    return base::error(Errc::not_supported, "calibrate: {} does not take longer for more bytes: {} us and {} us a byte",
                       name_of(probe), line.floor, line.slope);
  }

  /// GPUs: the first copy of a call waits on its lane for the call to begin, and the call for the last one to end.
  void fork() {
    const Point* alone = one(Probe::fork);
    const Point* many = alone != nullptr ? one(Probe::pair, alone->bytes) : nullptr;
    if (many == nullptr || many->count < 2) return;
    fork_ = std::max(work_us(*alone) - (many->us() - alone->us()) / (many->count - 1), kLeastUs);
  }

  Status copies() {
    const Sweep pair = sweep(Probe::pair);
    const study::Line line = study::fit_line(pair.bytes, pair.us);
    OVERLACE_TRY(check_slope(Probe::pair, line));
    const Sweep local = sweep(Probe::local);
    double least = *std::min_element(pair.us.begin(), pair.us.end());  // curves have times with their start
    for (const double us : local.us) least = std::min(least, us);
    const double start = std::clamp(line.floor, kLeastUs, 0.9 * least);
    m_.copy.start_us = measured(start);
    m_.copy.peer_GBps = measured(fastest(pair, line, start) / kBytesPerUs);
    m_.copy.pair_us = curve(pair, true);
    double largest = m_.copy.peer_GBps.value;
    if (const Sweep all = sweep(Probe::all); all.bytes.size() >= 2) {
      const double peers = std::max(m_.ranks - 1, 1);
      Sweep each = all;
      for (double& us : each.us) us /= peers;
      const study::Line together = study::fit_line(each.bytes, each.us);
      OVERLACE_TRY(check_slope(Probe::all, together));
      m_.copy.all_GBps = measured(1 / together.slope / kBytesPerUs);
      largest = std::max(largest, m_.copy.all_GBps.value);
    }
    m_.link.egress_GBps = m_.link.ingress_GBps = measured(largest);
    fastest_ = 2 * largest;
    if (local.bytes.size() >= 2) {
      const study::Line inside = study::fit_line(local.bytes, local.us);
      OVERLACE_TRY(check_slope(Probe::local, inside));
      m_.copy.local_GBps = measured(fastest(local, inside, start) / kBytesPerUs);
      m_.copy.local_us = curve(local, true);
      fastest_ = std::max(fastest_, 2 * m_.copy.local_GBps.value);
    }
    for (const Probe probe : {Probe::rows, Probe::post}) {
      const Point* p = one(probe);
      const Point* plain = p != nullptr ? one(Probe::pair, p->bytes) : nullptr;
      if (plain == nullptr) continue;
      const double more = (item_us(*p) - item_us(*plain)) / static_cast<double>(p->rows);
      if (probe == Probe::rows) m_.copy.row_us = measured(more, kLeastRowUs);
      if (probe == Probe::post) m_.copy.post_us = measured(more);
    }
    return {};
  }

  static spec::Curve curve(const Sweep& sweep, bool rises) {
    spec::Curve out;
    out.source = Source::measured;
    double last = 0;
    for (size_t i = 0; i < sweep.bytes.size(); ++i) {
      last = std::max(rises ? last : 0, rounded(sweep.us[i]));
      out.points.push_back({sweep.bytes[i], last});
    }
    return out;
  }

  /// Bytes per us that nothing is beyond: the curve says where less is reached.
  static double fastest(const Sweep& sweep, const study::Line& line, double start) {
    double out = 1 / line.slope;
    for (size_t i = 0; i < sweep.bytes.size(); ++i)
      if (sweep.us[i] > 2 * start) out = std::max(out, sweep.bytes[i] / (sweep.us[i] - start));
    return out;
  }

  void pushes() {
    const auto rates = [&](Probe probe, spec::Curve* out) {
      spec::Curve found;
      found.source = Source::measured;
      for (const Point& p : points_)
        if (p.probe == probe && !p.is_held_out)
          found.points.push_back({static_cast<double>(p.ctas), rounded(p.bytes / p.us() / kBytesPerUs)});
      if (!found.empty()) *out = found;
    };
    rates(Probe::store, &m_.transport.store_GBps);
    rates(Probe::tma, &m_.transport.tma_GBps);
    for (const Point& p : points_)
      if (p.probe == Probe::memory) fastest_ = std::max(fastest_, 2 * p.bytes / p.us() / kBytesPerUs);
  }

  Status reductions() {
    Sweep s = sweep(Probe::reduce);
    // No floor but the launch: least squares of the relative errors of bytes over a rate.
    double first = 0, second = 0;
    for (size_t i = 0; i < s.bytes.size(); ++i) {
      const double share = s.bytes[i] / std::max(s.us[i] - tiny_, 0.1 * s.us[i]);
      first += share;
      second += share * share;
    }
    double GBps = second / first / kBytesPerUs;
    m_.memory.reduce_GBps = measured(GBps);
    for (size_t i = 0; i < s.bytes.size(); ++i) {
      s.us[i] = std::max(s.us[i] - tiny_, 0.1 * s.us[i]);
      GBps = std::max(GBps, s.bytes[i] / s.us[i] / kBytesPerUs);
    }
    m_.memory.reduce_us = curve(s, true);
    largest_sum_ = s.bytes.back() / s.us.back() / kBytesPerUs;
    m_.latency.launch_us = measured(tiny_ - spec::reduce_us(m_, kTinyReduce));
    fastest_ = std::max(fastest_, GBps);
    m_.memory.hbm_GBps = measured(fastest_);
    return {};
  }

  void latencies() {
    auto& l = m_.latency;
    if (const auto us = item_us(Probe::signal)) l.signal_us = measured(*us - tiny_);
    for (int round = 0; round < 2; ++round) {  // the first of these waits has a flag in it
      solve(Probe::wait, [](Machine& m, double us) { m.latency.wait_us = measured(us); });
      solve(Probe::flag, [](Machine& m, double us) { m.latency.flag_us = measured(us); });
    }
    const double event = l.event_us.value, trigger = m_.copy.trigger_us.value;  // of another machine: how to split
    const double share = event > 0 ? event / (2 * event + trigger) : 0.5;
    solve(Probe::event, [&](Machine& m, double both) {  // there, where a copy waits, and back
      m.latency.event_us = measured(both * share);
      if (trigger > 0) m.copy.trigger_us = measured(both * (1 - 2 * share));
    });
  }

  /// What `set` makes of a time so that the machine, simulated, takes what was measured. The longer it is, the longer
  /// the point takes.
  template <class Set>
  void solve(Probe probe, const Set& set) {
    const Point* p = one(probe);
    if (p == nullptr) return;
    constexpr int kHalvings = 30;
    const Machine unsolved = m_;
    double low = kLeastUs, high = std::max(p->us(), 2 * kLeastUs);
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = std::sqrt(low * high);
      set(m_, middle);
      const auto us = simulated_us(m_, *p);
      if (!us) {
        m_ = unsolved;
        return;
      }
      const Point* lead = lead_of(points_, *p);
      const double before = lead != nullptr ? simulated_us(m_, *lead).value_or(0) : 0;
      (*us - before < p->us() - (lead != nullptr ? lead->us() : 0) ? low : high) = middle;
    }
  }

  void collectives() {
    const auto set = [&](Probe probe, spec::Curve* out) {
      Sweep s = sweep(probe);
      if (s.bytes.size() < 2) return;
      for (double& us : s.us) us = std::max(us - tiny_, 0.1 * us);
      *out = curve(s, false);
    };
    set(Probe::all_gather, &m_.collectives.all_gather_us);
    set(Probe::reduce_scatter, &m_.collectives.reduce_scatter_us);
    set(Probe::all_reduce, &m_.collectives.all_reduce_us);
    set(Probe::all_to_all, &m_.collectives.all_to_all_us);
  }

  /// Machine::Gemm of the parameters, all of them logarithms: start, wave, each (ns of a column of a tile per element
  /// of K), fixed (the same of a tile), sustained rate.
  Machine::Gemm gemm_of(const std::vector<double>& x) const {
    Machine::Gemm out = m_.gemm;
    out.start_us = measured(std::exp(x[0]));
    for (spec::GemmTile& tile : out.tiles) {
      tile.wave_us = measured(std::exp(x[1]));
      tile.k_ns = measured(std::exp(x[2]) * static_cast<double>(tile.cols) + std::exp(x[3]));
    }
    out.sustained_TFLOPs = measured(std::exp(x[4]));
    out.stream_GBps = m_.is_gpu ? measured(largest_sum_) : m_.memory.hbm_GBps;
    if (!m_.is_gpu) out.sm_stream_GBps = out.stream_GBps;
    return out;
  }

  Status products() {
    std::vector<const Point*> list;
    double best = 0;  // TFLOP/s
    for (const Point& p : points_) {
      if (p.probe != Probe::gemm || p.is_held_out) continue;
      list.push_back(&p);
      best = std::max(best, p.gemm.flops() / item_us(p) * 1e-6);
    }
    Machine trial = m_;
    const double most = std::log(best);
    const auto loss = [&](const std::vector<double>& x) {
      trial.gemm = gemm_of(x);
      double sum = 0;
      for (const Point* p : list) {
        const double error = std::log((spec::gemm_cost(trial, p->gemm).us + tiny_) / item_us(*p));
        sum += error * error;
      }
      const double above = std::max(0.0, std::abs(x[4] - most) - 0.05);  // what was reached is what can be
      return sum / static_cast<double>(list.size()) + above * above;
    };
    const double rows = static_cast<double>(m_.gemm.tiles.front().rows);
    const double each = std::log(2 * rows * std::max(m_.sms, 1) / (best * 1e3));
    const std::vector<std::vector<double>> starts = {
        {std::log(0.5), std::log(5.0)}, {std::log(0.1), std::log(2.0)}, {each}, {each - 2, each + 2}, {most}};
    m_.gemm = gemm_of(study::minimize_from(loss, starts, 0.5, 400));
    return {};
  }

  void add(spec::Load slowed, spec::Load by, double factor) {
    std::erase_if(m_.contention, [&](const spec::Contention& c) { return c.slowed == slowed && c.by == by; });
    if (factor >= kLeastFactor) m_.contention.push_back({slowed, by, measured(std::min(factor, kMostFactor))});
  }

  /// Work that takes longer than the copies beside it: what it lost, per time of copies.
  std::optional<double> slowed(Probe beside, double work_us) const {
    const Point* p = one(beside);
    const bool is_own = beside == Probe::gemm_out;
    const Point* alone = p != nullptr ? one(is_own ? Probe::all : Probe::pair, p->bytes) : nullptr;
    if (alone == nullptr) return std::nullopt;
    const double copies = p->copies * item_us(*alone);
    return 1 + std::max(0.0, p->us() - call_ - work_us) / copies;
  }

  /// The GEMMs of a point by themselves, from the point of their shape.
  double alone_us(const Point& p) const {
    for (const Point& q : points_) {
      if (q.probe == Probe::gemm && q.gemm.m == p.gemm.m && q.gemm.n == p.gemm.n && q.gemm.k == p.gemm.k)
        return item_us(q) * p.count;
    }
    return 0;
  }

  void contention() {
    using spec::Load;
    double by_arriving = 1;
    if (const Point* p = one(Probe::gemm_in)) {
      by_arriving = slowed(Probe::gemm_in, alone_us(*p)).value_or(1);
      add(Load::gemm_tensor, Load::ce_in, by_arriving);
    }
    if (const Point* p = one(Probe::reduce_in)) {
      const Point* alone = one(Probe::reduce, p->work_bytes);
      add(Load::reduce, Load::ce_in, 1);
      if (alone != nullptr && slowed(Probe::reduce_in, p->count * item_us(*alone)).value_or(1) >= kLeastFactor)
        solve(Probe::reduce_in, [&](Machine&, double factor) { add(Load::reduce, Load::ce_in, factor); });
    }
    if (const Point* p = one(Probe::gemm_out)) {
      const double both = slowed(Probe::gemm_out, alone_us(*p)).value_or(1);
      add(Load::gemm_tensor, Load::ce_out, both / by_arriving);
    }
    if (const Point* p = one(Probe::copy_out)) {
      const Point* alone = one(Probe::all, p->bytes);
      const double copies = alone != nullptr ? p->copies * item_us(*alone) : 0, work = alone_us(*p);
      if (alone != nullptr && work > 0)
        add(Load::ce_out, Load::gemm_tensor, 1 + std::max(0.0, p->us() - call_ - copies) / work);
    }
    ring();
  }

  /// Copies while as many arrive, against copies alone.
  void ring() {
    const Point* both = one(Probe::ring);
    const Point* alone = both != nullptr ? one(Probe::pair, both->bytes) : nullptr;
    if (alone != nullptr) add(spec::Load::ce_out, spec::Load::ce_in, item_us(*both) / item_us(*alone));
  }

  void host() {
    auto& l = m_.latency;
    const Point *call = one(Probe::host_call), *chain = one(Probe::host_chain), *copies = one(Probe::host_copies),
                *collective = one(Probe::host_collective);
    if (call == nullptr || chain == nullptr) return;
    const double kernel = std::max((chain->us() - call->us()) / (chain->count - 1), kLeastUs);
    const double rest = std::max(call->us() - kernel, kLeastUs);
    l.host_kernel_us = measured(kernel);
    l.host_call_us = measured(rest);
    if (copies != nullptr) l.host_copy_us = measured((copies->us() - rest) / copies->count);
    if (collective != nullptr) l.host_collective_us = measured((collective->us() - rest) / collective->count);
  }

  void noise() {
    std::vector<double> sigmas;
    for (const Point& p : points_) {
      if (p.probe != Probe::gemm) continue;
      const double ratio = base::percentile(p.samples_us, kFast) / base::percentile(p.samples_us, kFastest);
      sigmas.push_back(std::log(ratio) / kFastSigmas);
    }
    m_.noise.kernel_sigma = measured(base::median(sigmas));
    if (const Point* p = one(Probe::skew)) m_.noise.start_skew_us = measured(base::median(p->samples_us));
  }

  const std::vector<Point>& points_;
  Machine& m_;
  double call_ = 0, tiny_ = 0, barrier_ = 0, fork_ = 0;
  double fastest_ = 0;      // GB/s read and written that something reached, caches among it
  double largest_sum_ = 0;  // GB/s read and written by it: it is in no cache
};

/// The time of stores, as the fitted curve says.
std::optional<double> store_us(const Machine& m, const Point& p) {
  if (p.probe != Probe::store && p.probe != Probe::tma) return std::nullopt;
  const spec::Curve& curve = p.probe == Probe::store ? m.transport.store_GBps : m.transport.tma_GBps;
  return p.bytes / (curve.at(p.ctas) * kBytesPerUs);
}

bool is_simulated(Probe probe) { return probe < Probe::host_call || probe == Probe::operators; }

spec::ModelError error_of(const std::vector<double>& errors) {
  return {rounded(base::median(errors)), rounded(base::percentile(errors, 90))};
}

/// Adds errors of whole operators, by operator and family: of the simulator and of the recurrence.
void add_errors(const std::vector<Point>& points, Fit* fit) {
  using Errors = std::map<std::pair<std::string, std::string>, std::vector<double>>;
  Errors simulated, recurrent;
  for (size_t i = 0; i < points.size(); ++i) {
    const Point& p = points[i];
    if (p.probe != Probe::operators) continue;
    const std::pair key(p.op.op, p.candidate.family);
    if (fit->predicted_us[i]) simulated[key].push_back(std::abs(*fit->predicted_us[i] / p.us() - 1));
    if (const auto us = plan::Recurrence(p.op, fit->machine).us(p.candidate))
      recurrent[key].push_back(std::abs(*us / p.us() - 1));
  }
  fit->machine.errors.clear();
  fit->machine.recurrence_errors.clear();
  for (const auto& [key, errors] : simulated) fit->machine.errors[key.first][key.second] = error_of(errors);
  for (const auto& [key, errors] : recurrent) fit->machine.recurrence_errors[key.first][key.second] = error_of(errors);
}

/// How well the median of the samples is known.
double median_error_us(const Point& p) {
  if (p.percentile == 0) return 0;
  const double apart = base::percentile(p.samples_us, 75) - base::percentile(p.samples_us, 25);
  return kMedianError * apart / std::sqrt(static_cast<double>(p.samples_us.size()));
}

/// Times of whole operators do not move with what is fitted to parts; but what is left of theirs is no error of a fit.
void add_residuals(const std::vector<Point>& points, Fit* fit) {
  struct Errors {
    std::vector<double> fitted, held_out, spreads;
  };
  std::map<Probe, Errors> errors;
  std::map<int, double> leads;  // predicted
  for (const Point& p : points)
    if (p.probe == Probe::lead) leads[p.count] = simulated_us(fit->machine, p).value_or(0);
  for (const Point& p : points) {
    const auto us = is_simulated(p.probe) ? simulated_us(fit->machine, p) : store_us(fit->machine, p);
    fit->predicted_us.push_back(us);
    if (!us) continue;
    const Point* lead = lead_of(points, p);
    const double work_us = lead != nullptr ? std::max(p.us() - lead->us(), kLeastUs) : p.us();
    const double off = (lead != nullptr ? *us - leads[lead->count] : *us) / work_us;
    auto& [fitted, held_out, spreads] = errors[p.probe];
    (p.is_held_out || p.probe == Probe::operators ? held_out : fitted).push_back(std::abs(off - 1));
    spreads.push_back(median_error_us(p) / work_us);
  }
  for (const auto& [probe, lists] : errors) {
    const auto& [fitted, held_out, spreads] = lists;
    Residual one{name_of(probe), static_cast<int>(fitted.size()), static_cast<int>(held_out.size())};
    one.spread = base::median(spreads);
    if (!fitted.empty()) one.fit_p50 = base::median(fitted);
    if (!held_out.empty()) {
      one.held_out_p50 = base::median(held_out);
      one.held_out_max = *std::max_element(held_out.begin(), held_out.end());
    }
    fit->residuals.push_back(std::move(one));
  }
}

}  // namespace

const char* name_of(Probe probe) { return kProbeNames[static_cast<size_t>(probe)]; }

double Point::us() const { return base::percentile(samples_us, percentile); }

void hold_out(std::vector<Point>* sweep) {
  for (size_t i = 1; i + 1 < sweep->size(); ++i) (*sweep)[i].is_held_out = i % 3 == 1;
}

Machine as_priors(Machine machine) {
  const auto prior = [](auto&... one) { ((one.source = Source::prior), ...); };
  for (spec::GemmTile& tile : machine.gemm.tiles) prior(tile.wave_us, tile.k_ns);
  auto& g = machine.gemm;
  prior(g.start_us, g.sustained_TFLOPs, g.stream_GBps, g.sm_stream_GBps, g.unaligned_rows, g.empty_rows, g.fp8_speedup);
  auto& c = machine.copy;
  prior(c.pair_us, c.local_us, c.start_us, c.peer_GBps, c.all_GBps, c.local_GBps, c.row_us, c.trigger_us, c.post_us,
        c.out_of_step, c.most_grouped);
  auto& s = machine.few_rows;
  prior(s.gather_start_us, s.gather_sm_GBps, s.sum_start_us, s.sum_sm_GBps, s.measured_rows);
  prior(machine.transport.store_GBps, machine.transport.tma_GBps);
  prior(machine.link.egress_GBps, machine.link.ingress_GBps, machine.memory.hbm_GBps, machine.memory.reduce_GBps,
        machine.memory.reduce_us);
  auto& o = machine.collectives;
  prior(o.all_gather_us, o.reduce_scatter_us, o.all_reduce_us, o.all_to_all_us);
  auto& l = machine.latency;
  prior(l.launch_us, l.event_us, l.flag_us, l.wait_us, l.signal_us, l.barrier_us, l.call_us, l.host_kernel_us,
        l.host_copy_us, l.host_collective_us, l.host_call_us, l.host_lanes_us);
  for (spec::Contention& one : machine.contention) prior(one.factor);
  prior(machine.noise.kernel_sigma, machine.noise.start_skew_us);
  return machine;
}

Result<Fit> fit_points(const std::vector<Point>& points, const Machine& other) {
  Fit out;
  out.machine = as_priors(other);
  if (out.machine.gemm.tiles.empty())
    return base::invalid_argument("calibrate: machine {} has no tiles, wanted at least one", other.name);
  OVERLACE_TRY(Fitter(points, &out.machine).run());
  add_residuals(points, &out);
  add_errors(points, &out);
  return out;
}

Status check_residuals(const std::vector<Residual>& residuals, double most) {
  for (const Residual& one : residuals) {
    const bool is_seen = one.held_out == 0;
    const double off = is_seen ? one.fit_p50 : one.held_out_p50;
    const double known = std::min(kSpreads * one.spread, kMostUnknown);
    const double limit = std::max(is_seen ? std::max(most, kMostSeen) : most, known);
    if (one.probe == name_of(Probe::operators) || off <= limit) continue;
    return base::error(Errc::not_supported,
                       "calibrate: {}: the median of {} points that {} is {:.1f} % off, wanted at most {:.1f} %; is "
                       "the machine busy with something else?",
                       one.probe, is_seen ? one.points : one.held_out, is_seen ? "were fitted" : "no fit has seen",
                       100 * off, 100 * limit);
  }
  return {};
}

}  // namespace overlace::cli
