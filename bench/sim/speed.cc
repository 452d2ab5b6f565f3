#include "bench/sim/speed.h"

#include <algorithm>
#include <ctime>

#include "src/base/format.h"
#include "src/sim/engine/engine.h"
#include "src/sim/schedule/simulation.h"

namespace overlace::bench {
namespace {

/// Of this thread: others may want the cores too.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// Pops an event and pushes one at a random later time, with `pending` events there all the while; M events/s.
double hold(size_t pending) {
  sim::EventQueue queue;
  for (size_t i = 0; i < pending; ++i) queue.push(sim::random_bits(1, i, 0, 0) % 1'000'000, static_cast<uint32_t>(i));
  constexpr int kEvents = 4'000'000;
  uint64_t state = 88172645463325252u;
  double best = 0;
  for (int turn = 0; turn < 3; ++turn) {
    const double begin = cpu_seconds();
    for (int i = 0; i < kEvents; ++i) {
      const sim::Event event = queue.pop();
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      queue.push(event.t_ps + state % 2'000'000, event.handle);
    }
    best = std::max(best, kEvents / (cpu_seconds() - begin) * 1e-6);
  }
  return best;
}

struct Candidate {
  const char *op, *family;
  int64_t m, n, k;
  int degree;
};
constexpr Candidate kCandidates[] = {
    {"ag_gemm", "library", 8192, 2560, 8192, 1},           {"ag_gemm", "hetero_unfused_1d", 8192, 2560, 8192, 1},
    {"ag_gemm", "hetero_fused_1d", 8192, 2560, 8192, 4},   {"ag_gemm", "k_slab", 1024, 2560, 8192, 4},
    {"gemm_rs", "hetero_unfused_1d", 8192, 8192, 2048, 1}, {"gemm_rs", "tma_slot", 1024, 8192, 2048, 64},
    {"gemm_ar", "grouped_unfused_1d", 8192, 8192, 7168, 4}};

/// us, best of 20; the clock ticks in microseconds, so ten in a row.
template <class Simulate>
double best_us(Simulate simulate) {
  double best = 1e9;
  for (int i = 0; i < 20; ++i) {
    constexpr int kTurns = 10;
    const double begin = cpu_seconds();
    for (int turn = 0; turn < kTurns; ++turn) simulate();
    best = std::min(best, (cpu_seconds() - begin) / kTurns * 1e6);
  }
  return best;
}

}  // namespace

base::Result<std::string> speed() {
  std::string out = "hold model of the event queue\n";
  for (const auto& [pending, wanted] :
       {std::pair<size_t, double>{1'000, 10}, {16'000, 8}, {262'000, 5}, {1'000'000, 3.5}})
    out += base::format("{:>10} pending {:>8.1f} M events/s (wanted >= {})\n", pending, hold(pending), wanted);
  out += "\none candidate of 4 ranks as the planner asks for it, best of 20 (wanted <= 100 us)\n";
  const spec::Machine machine = spec::find_machine("h200x4");
  for (const Candidate& c : kCandidates) {
    spec::OpSpec op;
    op.op = c.op;
    op.m = c.m;
    op.n = c.n;
    op.k = c.k;
    op.ranks = 4;
    spec::Params options;
    if (std::string_view(c.family) == "tma_slot") options = {{"align", int64_t{256}}, {"align_n", int64_t{128}}};
    const spec::Schedule schedule = spec::make_schedule(op, c.family, c.degree, options);
    const base::Result<sim::SimResult> folded = sim::try_simulate_folded(schedule, machine);
    if (!folded.ok()) return folded.status();
    const double us = best_us([&] { (void)sim::try_simulate_folded(schedule, machine); });
    const double all_us = best_us([&] { (void)sim::try_simulate(schedule, machine); });
    out += base::format("{:<10}{:<20}q {:<3}{:>8} events {:>9.0f} us, all ranks one by one {:>9.0f} us\n", c.op,
                        c.family, c.degree, folded->events, us, all_us);
  }
  return out;
}

}  // namespace overlace::bench
