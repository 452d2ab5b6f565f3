// V4, V6, V12: collectives on networks.
#include <algorithm>
#include <cmath>

#include "src/study/network/collectives.h"
#include "src/study/network/curve.h"
#include "src/study/validate/figures.h"

namespace overlace::study {
namespace {

constexpr double kHostRanks = 8;
constexpr double kNvlinkGBps = 360;
constexpr double kLeastShare = 0.1;  // below it, nothing is asked of the model

struct Tier {
  std::vector<TierPoint> points;
  void add(double ideal_us, double steps, double share) {
    if (share >= kLeastShare) points.push_back({ideal_us, steps, share});
  }
  void row(const std::string& figure, bool has_fixed, Rows* rows) const {
    const TierConstants constants = fit_tier(points, has_fixed);
    Errors errors, baseline;
    for (const TierPoint& point : points) {
      errors.add(tier_share(constants, point.ideal_us, point.steps), point.share);
      baseline.add(1, point.share);
    }
    rows->push_back({"V4", figure + ": largest error of a share", "%", kNone, errors.largest, 0, 15, baseline.largest});
  }
};

}  // namespace

void validate_scale_out(const std::string& golden, Rows* rows) {
  const Golden all_reduce = load(golden, "simai/all_reduce_nic.csv"), all_to_all = load(golden, "simai/all_to_all.csv");
  Tier nic, pairs, host;
  for (size_t i = 0; i < all_reduce.rows(); ++i) {
    // A ring over the hosts for each of their GPUs.
    const double hosts = all_reduce.number(i, "hosts"), bytes = all_reduce.number(i, "bytes") / kHostRanks;
    nic.add(2 * (hosts - 1) / hosts * bytes / (kNic.GBps * 1e3), 2 * (hosts - 1), all_reduce.number(i, "share"));
  }
  for (size_t i = 0; i < all_to_all.rows(); ++i) {
    const double hosts = all_to_all.number(i, "hosts"), bytes = all_to_all.number(i, "bytes");
    const double share = all_to_all.number(i, "share");
    if (hosts == 1)
      host.add((kHostRanks - 1) / kHostRanks * bytes / (kNvlinkGBps * 1e3), kHostRanks - 1, share);
    else
      pairs.add((hosts - 1) / hosts * bytes / (kNic.GBps * 1e3), hosts - 1, share);
  }
  nic.row("all-reduce, 2 to 128 hosts", true, rows);
  host.row("all-to-all, one host", false, rows);
  pairs.row("all-to-all, 2 to 16 hosts", false, rows);
}

void validate_astra_sim(const std::string& golden, Rows* rows) {
  constexpr double kGiBps = 1.073741824, kAlphaUs = 0.93625;
  const Golden table = load(golden, "astra_sim/collectives.csv");
  for (size_t i = 0; i < table.rows(); ++i) {
    const int ranks = static_cast<int>(table.integer(i, "ranks")),
              splits = static_cast<int>(table.integer(i, "splits"));
    const bool is_torus = table.text(i, "topology") == "torus";
    const Network network =
        (is_torus ? torus({16, 8}, {25 * kGiBps, kAlphaUs}) : nvswitch(ranks, {400 * kGiBps, kAlphaUs})).value();
    const std::string& name = table.text(i, "collective");
    const Collective op = name == "all_reduce" ? Collective::all_reduce : Collective::all_to_all;
    const auto bytes = static_cast<uint64_t>(table.integer(i, "bytes"));
    CollectiveOptions options;
    options.forwarding = Forwarding::store_and_forward;
    options.splits = splits;
    const CollectiveTime time = run_collective(op, table.text(i, "algorithm"), network, bytes, options).value();
    const double published = table.number(i, "us"), band = table.number(i, "band_percent") / 100;
    rows->push_back(
        {"V6",
         base::format("{} {}, {} ranks, {}, {} splits", name, time.algorithm, ranks, table.text(i, "topology"), splits),
         "us", published, time.us, published * (1 - band), published * (1 + band), lower_bound_us(op, network, bytes),
         table.integer(i, "must") == 1});
  }
}

void validate_mesh(const std::string&, Rows* rows) {
  const Network mesh = full_mesh(8, {64, 0}).value();
  const uint64_t bytes = 64 << 20;
  const double all_links = run_collective(Collective::all_gather, "direct", mesh, bytes)->us;
  const double one_link = run_collective(Collective::all_gather, "ring", mesh, bytes)->us;
  rows->push_back({"V12", "full mesh of 8, all-gather: one link at a time over all links", "", 7, one_link / all_links,
                   7 - 1e-6, 7 + 1e-6, 1});
}

}  // namespace overlace::study
