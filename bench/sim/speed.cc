#include "bench/sim/speed.h"

#include <algorithm>
#include <ctime>

#include "src/base/format.h"
#include "src/sim/engine/engine.h"
#include "src/sim/schedule/simulation.h"
#include "src/spec/families/families.h"

namespace overlace::bench {
namespace {

/// Processor time of this process: others may want the cores too.
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
  const spec::OperatorDef& op;
  spec::ClosedForm form;  // of the last family that has it
  int64_t m, n, k;
  int degree;
};
using enum spec::ClosedForm;
constexpr Candidate kCandidates[] = {
    {spec::kAgGemm, library, 8192, 2560, 8192, 1},      {spec::kAgGemm, per_shard, 8192, 2560, 8192, 1},
    {spec::kAgGemm, other_shards, 8192, 2560, 8192, 4}, {spec::kAgGemm, slab_kernel, 1024, 2560, 8192, 4},
    {spec::kGemmRs, per_shard, 8192, 8192, 2048, 1},    {spec::kGemmRs, tile_kernel, 1024, 8192, 2048, 64},
    {spec::kGemmAr, group_shards, 8192, 8192, 7168, 4}};

const spec::FamilyDef& family_of(const Candidate& c) {
  const auto last = std::find_if(c.op.families.rbegin(), c.op.families.rend(),
                                 [&](const spec::FamilyDef& family) { return family.form == c.form; });
  return *last;
}

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
    op.op = c.op.name;
    op.m = c.m;
    op.n = c.n;
    op.k = c.k;
    op.ranks = 4;
    const std::string_view family = family_of(c).name;
    spec::Params options;
    if (c.form == tile_kernel) options = {{"align", int64_t{256}}, {"align_n", int64_t{128}}};
    const spec::Schedule schedule = spec::make_schedule(op, std::string(family), c.degree, options);
    const base::Result<sim::SimResult> folded = sim::try_simulate_folded(schedule, machine);
    if (!folded.ok()) return folded.status();
    const double us = best_us([&] { (void)sim::try_simulate_folded(schedule, machine); });
    const double all_us = best_us([&] { (void)sim::try_simulate(schedule, machine); });
    out += base::format("{:<10}{:<20}q {:<3}{:>8} events {:>9.0f} us, all ranks one by one {:>9.0f} us\n", c.op.name,
                        family, c.degree, folded->events, us, all_us);
  }
  return out;
}

}  // namespace overlace::bench
