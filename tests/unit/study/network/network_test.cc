#include "src/study/network/network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "src/study/network/collectives.h"

namespace overlace::study {
namespace {

std::vector<uint32_t> path(Router* router, int from, int to) {
  std::vector<uint32_t> links;
  router->path(from, to, &links);
  return links;
}

/// Every way begins and ends where it should and hangs together.
void check_ways(const Network& network, size_t longest) {
  Router router(network);
  for (int from = 0; from < network.ranks; ++from)
    for (int to = 0; to < network.ranks; ++to) {
      const auto links = path(&router, from, to);
      ASSERT_LE(links.size(), longest) << network.name << " " << from << " to " << to;
      int at = from;
      for (const uint32_t link : links) {
        ASSERT_EQ(network.links[link].from, at);
        at = network.links[link].to;
      }
      ASSERT_EQ(at, to);
    }
}

TEST(Network, WaysOfEveryBlueprint) {
  check_ways(nvswitch(5).value(), 2);
  check_ways(full_mesh(5, {64, 0}).value(), 1);
  check_ways(ring(7, {25, 0}).value(), 3);
  check_ways(torus({4, 3, 2}, {25, 0}).value(), 2 + 1 + 1);
  check_ways(rail_fat_tree(4, 2, 48.5, 4, 1).value(), 6);
  check_ways(rail_fat_tree(2, 4, 48.5, 64, 1).value(), 4);  // another rail: over the own host's switch first
  EXPECT_EQ(nvl72()->ranks, 72);
}

TEST(Network, TextOfABlueprint) {
  EXPECT_EQ(network_of("nvswitch(4)")->ranks, 4);
  EXPECT_EQ(network_of("torus(16, 8, 25)")->ranks, 128);
  EXPECT_EQ(network_of("torus(16, 8, 25)")->links[0].figures.GBps, 25);
  EXPECT_EQ(network_of("rail_fat_tree(16,8,48.5,64,1)")->per_host, 8);
  for (const char* bad :
       {"", "mesh(4)", "nvswitch", "nvswitch(", "nvswitch()", "nvswitch(4", "nvswitch(0)", "nvswitch(2.5)",
        "nvswitch(4,5)", "ring(4)", "ring(4,0)", "ring(4,-1)", "torus(4)", "torus(1,4,25)", "torus(4,4,4,4,25)",
        "fullmesh(x,1)", "nvswitch(1e30)", "rail_fat_tree(2,2,48,1,1)"})
    EXPECT_EQ(network_of(bad).status().code(), Errc::invalid_argument) << bad;
}

TEST(Network, JsonGraph) {
  const char* const text = R"({"ranks": 2, "vertices": 3, "links": [
    {"from": 0, "to": 2, "GBps": 10, "alpha_us": 1}, {"from": 2, "to": 0, "GBps": 10, "alpha_us": 1},
    {"from": 1, "to": 2, "GBps": 10, "alpha_us": 1}, {"from": 2, "to": 1, "GBps": 5, "alpha_us": 0}]})";
  const base::Json graph = base::Json::parse(text).value();
  const auto network = network_from_json(graph, "g.json");
  ASSERT_TRUE(network.ok()) << network.status().message();
  check_ways(*network, 2);
  const auto refused = [&](const char* from, const char* to) {
    std::string changed = text;
    changed.replace(changed.find(from), std::string(from).size(), to);
    const auto result = network_from_json(base::Json::parse(changed).value(), "g.json");
    EXPECT_EQ(result.status().code(), Errc::corrupt) << to;
    return result.status().message();
  };
  EXPECT_EQ(refused("\"GBps\": 5", "\"GBps\": 0"), "g.json: links[3]: GBps is 0, wanted 0.01 to 1000000");
  EXPECT_EQ(refused("\"alpha_us\": 0", "\"alpha_ms\": 0"), "g.json: links[3]: unknown key alpha_ms");
  EXPECT_EQ(refused("\"ranks\": 2", "\"ranks\": 1"), "g.json: ranks is 1, wanted 2 to 65536");
  refused("\"to\": 2", "\"to\": 7");
  EXPECT_EQ(refused("\"from\": 2, \"to\": 1", "\"from\": 2, \"to\": 0"),
            "g.json: links do not join all 2 ranks, wanted a way from each to each");
}

TEST(Network, HashSpreadsEqualWaysAndKeepsAFlowOnOne) {
  // Two ranks, four switches between them.
  Network network;
  network.ranks = 2;
  network.vertices = 6;
  for (int hub = 2; hub < 6; ++hub)
    for (int rank = 0; rank < 2; ++rank) {
      network.links.push_back({rank, hub, {10, 0}});
      network.links.push_back({hub, rank, {10, 0}});
    }
  std::set<uint32_t> first;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    Router router(network, seed), again(network, seed);
    EXPECT_EQ(path(&router, 0, 1), path(&again, 0, 1));
    first.insert(path(&router, 0, 1)[0]);
  }
  EXPECT_EQ(first.size(), 4U);
}

constexpr double kGiB = 1.073741824;  // decimal GB/s of one GiB/s

TEST(Collectives, RingIsTheClosedForm) {
  const uint64_t bytes = 64 << 20;
  for (const int n : {2, 3, 8, 64}) {
    const Network network = nvswitch(n, {400 * kGiB, 0.5}).value();
    CollectiveOptions options;
    options.forwarding = Forwarding::store_and_forward;
    const auto time = run_collective(Collective::all_reduce, "ring", network, bytes, options);
    const double hop =
        static_cast<double>((bytes + static_cast<uint64_t>(n) - 1) / static_cast<uint64_t>(n)) / (400e3 * kGiB) + 0.5;
    EXPECT_NEAR(time->us, 2 * (n - 1) * 2 * hop, 1e-3) << n;
    EXPECT_EQ(time->messages, static_cast<uint64_t>(2 * (n - 1) * n));
  }
}

TEST(Collectives, BytesAreConserved) {
  const Network network = rail_fat_tree(4, 4, 48.5, 8, 1).value();
  const uint64_t bytes = 16 << 20, n = 16;
  const auto sent = [&](Collective op, const char* algorithm) {
    return run_collective(op, algorithm, network, bytes)->bytes;
  };
  EXPECT_EQ(sent(Collective::all_reduce, "ring"), 2 * (n - 1) * bytes);
  EXPECT_EQ(sent(Collective::all_reduce, "two_shot"), 2 * (n - 1) * bytes);
  EXPECT_EQ(sent(Collective::all_gather, "direct"), (n - 1) * bytes);
  EXPECT_EQ(sent(Collective::all_to_all, "direct"), (n - 1) * bytes);
  EXPECT_EQ(sent(Collective::all_reduce, "tree"), 2 * (n - 1) * bytes);
  // Twice 3/4 in hosts, and 2 * 3/4 of a quarter between them, from each of 16 ranks.
  EXPECT_EQ(sent(Collective::all_reduce, "hierarchical"), n * (2 * bytes / 4 * 3 + 2 * 3 * bytes / 16));
  EXPECT_EQ(sent(Collective::all_to_all, "rail"), n * (bytes / 4 * 3 + bytes / 4 * 3));
}

TEST(Collectives, NothingIsFasterThanTheBoundAndBestIsTheLeast) {
  const Network networks[] = {nvswitch(8).value(), full_mesh(8, {64, 0}).value(), ring(6, {25, 1}).value(),
                              torus({4, 4}, {25, 0}).value(), rail_fat_tree(4, 4, 48.5, 4, 2).value()};
  for (const Network& network : networks)
    for (const Collective op :
         {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce, Collective::all_to_all}) {
      const double best = best_collective(op, network, 8 << 20)->us;
      for (const std::string_view algorithm : algorithms(op, network)) {
        const double us = run_collective(op, algorithm, network, 8 << 20)->us;
        EXPECT_GE(us * 1.0001, lower_bound_us(op, network, 8 << 20)) << network.name << " " << algorithm;
        EXPECT_LE(best, us);
      }
    }
}

TEST(Collectives, MoreBandwidthIsNeverSlower) {
  for (const char* algorithm : {"ring", "direct"})
    for (const Collective op : {Collective::reduce_scatter, Collective::all_to_all}) {
      double before = 1e30;
      for (const double GBps : {10.0, 20.0, 80.0, 1000.0}) {
        const double us = run_collective(op, algorithm, torus({4, 2}, {GBps, 1}).value(), 1 << 20)->us;
        EXPECT_LE(us, before) << algorithm << " " << GBps;
        before = us;
      }
    }
}

TEST(Collectives, ManyLinksOfAMeshWorkAtOnce) {
  const Network mesh = full_mesh(8, {64, 0}).value();
  const auto all = run_collective(Collective::all_gather, "direct", mesh, 8 << 20);
  const auto one = run_collective(Collective::all_gather, "ring", mesh, 8 << 20);  // one link of seven at a time
  EXPECT_NEAR(one->us / all->us, 7, 1e-6);
}

TEST(Collectives, SplitsAreAPipeline) {
  const Network network = nvswitch(4, {400 * kGiB, 1}).value();
  CollectiveOptions whole, split;
  whole.forwarding = split.forwarding = Forwarding::store_and_forward;
  split.splits = 16;
  EXPECT_LT(run_collective(Collective::all_reduce, "ring", network, 64 << 20, split)->us,
            0.55 * run_collective(Collective::all_reduce, "ring", network, 64 << 20, whole)->us);
}

TEST(Collectives, RefusesWhatDoesNotExist) {
  const Network network = nvswitch(4).value();
  EXPECT_EQ(run_collective(Collective::all_reduce, "rail", network, 8).status().message(),
            "collective: algorithm is rail, wanted one of ring, two_shot, tree");
  EXPECT_EQ(run_collective(Collective::all_gather, "ring", network, kMostBytes + 1).status().code(),
            Errc::invalid_argument);
  EXPECT_EQ(run_collective(Collective::all_gather, "ring", network, 0).status().code(), Errc::invalid_argument);
}

}  // namespace
}  // namespace overlace::study
