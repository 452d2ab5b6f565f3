#include "bench/sim/network.h"

#include <algorithm>
#include <ctime>

#include "src/base/format.h"
#include "src/study/network/collectives.h"

namespace overlace::bench {
namespace {

struct Case {
  study::Collective op;
  const char *algorithm, *name;
  double wanted_s;
  const char* astra_sim;  // analytical backend aware of congestion, 2-core machine
};
constexpr Case kCases[] = {
    {study::Collective::all_reduce, "ring", "ring all-reduce, 1024 ranks", 0.2, "3.8 s"},
    {study::Collective::all_to_all, "direct", "direct all-to-all, 1024 ranks", 0.12, "8.8 s"},
};
constexpr int kTurns = 5;

}  // namespace

base::Result<std::string> network_speed() {
  const base::Result<study::Network> network = study::nvswitch(1024, {400, 0.936});
  if (!network.ok()) return network.status();
  study::CollectiveOptions options;
  options.forwarding = study::Forwarding::store_and_forward;
  std::string table = base::format("{:<32} {:>10} {:>8} {:>12} {:>8} {:>10}\n", "64 MiB", "messages", "s",
                                   "M messages/s", "wanted", "ASTRA-sim");
  for (const Case& one : kCases) {
    double best_s = 1e30;
    uint64_t messages = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
      const std::clock_t begin = std::clock();
      const auto time = study::run_collective(one.op, one.algorithm, *network, 64 << 20, options);
      if (!time.ok()) return time.status();
      best_s = std::min(best_s, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
      messages = time->messages;
    }
    table += base::format("{:<32} {:>10} {:>8.3f} {:>12.1f} {:>8} {:>10}\n", one.name, messages, best_s,
                          static_cast<double>(messages) / best_s * 1e-6, one.wanted_s, one.astra_sim);
  }
  return table;
}

}  // namespace overlace::bench
