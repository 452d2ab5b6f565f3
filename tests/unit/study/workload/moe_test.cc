// The expert-parallel layer against closed forms, properties, and what it took before it knew rows from copies.
#include "src/study/workload/moe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "src/spec/costs.h"

namespace overlace::study {
namespace {

spec::Machine moe_machine() {
  spec::Machine m = spec::find_machine("h200x4");
  m.contention.clear();
  return m;
}

MoeModel small_moe() {
  MoeModel model;
  model.hidden = 2048;
  model.intermediate = 1024;
  model.experts = 16;
  model.top_k = 4;
  model.tokens = 1024;
  return model;
}
MoeModel large_moe() { return {}; }

MoeTime layer_of(const MoeModel& model, const MoeRun& run, const Network& network) {
  return moe_layer(model, run, moe_machine(), network).value();
}
MoeRun per_copy() {
  MoeRun run;
  run.is_row_per_copy = true;
  return run;
}

struct Before {
  const char* network;
  MoeModel (*model)();
  int group;
  double zipf;
  uint64_t seed;
  int chunks;
  int64_t layer_ps;
};

/// A row per copy, experts that the ranks divide: times from before there was anything else, to the bit.
TEST(Moe, RowsPerCopyTakeWhatTheyTook) {
  const Before cases[] = {
      {"nvswitch(4)", small_moe, 0, 0, 1, 1, 251159699},
      {"nvswitch(4)", small_moe, 0, 0, 1, 3, 478923297},
      {"nvswitch(4)", small_moe, 0, 0.5, 1, 1, 302145300},
      {"nvswitch(4)", small_moe, 0, 0.5, 1, 3, 486452729},
      {"nvswitch(8)", small_moe, 2, 0, 1, 1, 356008029},
      {"nvswitch(8)", small_moe, 2, 0, 1, 3, 854916713},
      {"nvswitch(8)", small_moe, 2, 0.5, 1, 1, 363016741},
      {"nvswitch(8)", small_moe, 2, 0.5, 1, 3, 857753572},
      {"rail_fat_tree(2,4,50,4,1)", small_moe, 0, 0, 1, 1, 534944197},
      {"rail_fat_tree(2,4,50,4,1)", small_moe, 0, 0, 1, 3, 471196905},
      {"rail_fat_tree(2,4,50,4,1)", small_moe, 0, 0.5, 1, 1, 767624442},
      {"rail_fat_tree(2,4,50,4,1)", small_moe, 0, 0.5, 1, 3, 634193914},
      {"torus(4,4,25)", small_moe, 0, 0, 1, 1, 2813349373},
      {"torus(4,4,25)", small_moe, 0, 0, 1, 3, 2739419828},
      {"torus(4,4,25)", small_moe, 0, 0.5, 1, 1, 2891653652},
      {"torus(4,4,25)", small_moe, 0, 0.5, 1, 3, 2762747690},
      {"rail_fat_tree(4,8,50,8,1)", large_moe, 0, 0, 1, 1, 21056284924},
      {"rail_fat_tree(4,8,50,8,1)", large_moe, 0, 0, 1, 4, 17193357364},
      {"rail_fat_tree(4,8,50,8,1)", large_moe, 16, 0.6, 7, 1, 23484118309},
      {"rail_fat_tree(4,8,50,8,1)", large_moe, 16, 0.6, 7, 4, 16928803252},
      {"torus(8,8,25)", large_moe, 0, 0.4, 2, 1, 236708714286},
      {"torus(8,8,25)", large_moe, 0, 0.4, 2, 2, 228435908016},
  };
  const spec::Machine machine = spec::find_machine(OVERLACE_SOURCE_DIR "/tests/golden/sim/machine.json");
  for (const Before& c : cases) {
    MoeRun run = per_copy();
    run.group = c.group;
    run.zipf = c.zipf;
    run.seed = c.seed;
    run.chunks = c.chunks;
    const MoeTime time = moe_layer(c.model(), run, machine, network_of(c.network).value()).value();
    EXPECT_EQ(sim::ps_of_us(time.layer_us), static_cast<sim::Time>(c.layer_ps)) << c.network << ", " << c.chunks;
    EXPECT_EQ(time.sent_bytes, time.copy_bytes) << c.network;
  }
}

TEST(Moe, EvenLayerOfCopiesIsTheSumOfItsParts) {
  const MoeModel model = small_moe();
  const Network network = nvswitch(4, {100, 0.5}).value();
  const spec::Machine m = moe_machine();
  const double launch = m.latency.launch_us.value, start = m.gemm.start_us.value;
  const double sent = 1024 * 4 * 2048.0 * 2;  // bytes of a rank, a quarter of them to itself
  const double all_to_all = run_collective(Collective::all_to_all, "direct", network, static_cast<uint64_t>(sent))->us;
  const auto expert = [&](int64_t n, int64_t k) {  // 4 experts of 1024 tokens each
    return 4 * (spec::gemm_cost(m, {1024, n, k}).us - start) + start + launch;
  };
  const double want = spec::gemm_cost(m, {1024, 16, 2048}).us + launch + spec::reduce_us(m, 2 * sent) + launch +
                      2 * all_to_all + expert(2048, 2048) + expert(2048, 1024) +
                      spec::reduce_us(m, 3.0 * 4096 * 1024 * 2) + launch +
                      spec::reduce_us(m, (4096 + 1024) * 2048.0 * 2) + launch;
  const MoeTime time = layer_of(model, per_copy(), network);
  EXPECT_NEAR(time.layer_us, want, 1e-3);
  EXPECT_NEAR(time.layer_us, time.serial_us, 1e-3);
  EXPECT_NEAR(time.dispatch_us, all_to_all, 1e-6);
  EXPECT_NEAR(time.sent_bytes, sent * 3 / 4, 1);
  EXPECT_EQ(time.imbalance, 1);
}

/// Fewer rows go, and passes over memory come: from a row to its copies, and back to their sum.
TEST(Moe, EvenLayerOfRowsIsTheSumOfItsParts) {
  const MoeModel model = small_moe();
  const Network network = nvswitch(4, {100, 0.5}).value();
  const spec::Machine m = moe_machine();
  const double launch = m.latency.launch_us.value, start = m.gemm.start_us.value;
  const double share = 1 - 12.0 * 11 * 10 * 9 / (16 * 15 * 14 * 13);  // of the sets of 4 of 16 that have one of 4
  const double rows = std::round(1024 * share * 1024) / 1024, token = 2048.0 * 2, sent = 4 * rows * token;
  const double all_to_all =
      run_collective(Collective::all_to_all, "direct", network, 4 * static_cast<uint64_t>(std::ceil(rows * token)))->us;
  const auto expert = [&](int64_t n, int64_t k) {
    return 4 * (spec::gemm_cost(m, {1024, n, k}).us - start) + start + launch;
  };
  const auto memory = [&](double bytes) { return spec::reduce_us(m, bytes) + launch; };
  const double want = spec::gemm_cost(m, {1024, 16, 2048}).us + launch + memory(2 * sent) + 2 * all_to_all +
                      2 * memory(sent + 4096 * token) + expert(2048, 2048) + expert(2048, 1024) +
                      memory(3.0 * 4096 * 1024 * 2) + memory(sent + 1024 * token);
  const MoeTime time = layer_of(model, {}, network);
  EXPECT_NEAR(time.layer_us, want, 1e-3);
  EXPECT_NEAR(time.dispatch_us, all_to_all, 1e-6);
  EXPECT_NEAR(time.sent_bytes, sent * 3 / 4, 1);
  EXPECT_EQ(time.copy_bytes, 1024 * 4 * 2048.0 * 2 * 3 / 4);
}

/// A network that takes no time leaves the rank with two experts, each token of which goes there once: nobody has both
/// experts of the others. Rank 0 has the longer permutation and sum.
TEST(Moe, UnevenLayerOfRowsIsTheSumOfItsParts) {
  MoeModel model = small_moe();
  model.experts = 3;
  model.top_k = 2;
  model.tokens = 1000;
  MoeRun run;
  run.is_ideal = true;
  run.begin = {0, 1, 3};
  run.counts = {300, 800, 900, 100, 950, 950};
  const spec::Machine m = moe_machine();
  const double launch = m.latency.launch_us.value, start = m.gemm.start_us.value, token = 2048.0 * 2;
  const auto memory = [&](double bytes) { return spec::reduce_us(m, bytes) + launch; };
  const auto experts = [&](std::initializer_list<int64_t> rows, int64_t n, int64_t k) {
    double us = start + launch;
    for (const int64_t one : rows) us += spec::gemm_cost(m, {one, n, k}).us - start;
    return us;
  };
  const double router = spec::gemm_cost(m, {1000, 3, 2048}).us + launch, activated = 3 * 1024 * 2;
  const double last = 2 * memory((2000 + 3600) * token) + experts({1750, 1850}, 2048, 2048) +
                      experts({1750, 1850}, 2048, 1024) + memory(3600 * activated);
  const double first = experts({400}, 2048, 2048) + experts({400}, 2048, 1024) + memory(400 * activated);
  ASSERT_LT(first, last);
  const double permute = memory(2 * 1300 * token), sum = memory((1300 + 1000) * token);
  const MoeTime time = layer_of(model, run, nvswitch(2).value());
  EXPECT_NEAR(time.layer_us, router + permute + last + sum, 1e-3);
  EXPECT_NEAR(time.compute_us, router + memory(2 * 1100 * token) + last + memory((1100 + 1000) * token), 1e-3);
  EXPECT_EQ(time.sent_bytes, (1000 + 100) / 2 * token);
  EXPECT_EQ(time.copy_bytes, (1700 + 100) / 2 * token);
  EXPECT_EQ(time.imbalance, 3600.0 / 2000);
}

/// Where every token has one expert on one rank, rows are copies: nothing is different.
TEST(Moe, OneExpertPerTokenTakesTheSameBothWays) {
  MoeModel model = small_moe();
  model.top_k = 1;
  for (const double zipf : {0.0, 0.7}) {
    MoeRun run;
    run.zipf = zipf;
    MoeRun copies = per_copy();
    copies.zipf = zipf;
    const Network network = nvswitch(16, {100, 0.5}).value();
    const MoeTime a = layer_of(model, run, network), b = layer_of(model, copies, network);
    EXPECT_EQ(a.layer_us, b.layer_us) << zipf;
    EXPECT_EQ(a.sent_bytes, b.sent_bytes) << zipf;
  }
}

TEST(Moe, OneRankSendsNothing) {
  const MoeTime time = layer_of(small_moe(), {}, nvswitch(1).value());
  EXPECT_EQ(time.dispatch_us, 0);
  EXPECT_EQ(time.exposed_us(), 0);
  MoeRun groups;
  groups.group = 1;
  EXPECT_EQ(layer_of(small_moe(), groups, nvswitch(8).value()).layer_us, time.layer_us);
}

/// Up to where the most popular expert has all tokens and more skew fills the next ones.
TEST(Moe, SkewIsNeverFasterAndMoreBandwidthNeverSlower) {
  const MoeModel model = small_moe();
  MoeRun run;
  double before = 0;
  for (const double zipf : {0.0, 0.4, 0.8, 1.2}) {
    run.zipf = zipf;
    const MoeTime time = layer_of(model, run, nvswitch(8, {100, 0.5}).value());
    EXPECT_GT(time.layer_us, before) << zipf;
    EXPECT_GE(time.layer_us, time.bound_us - 1e-3);
    before = time.layer_us;
  }
  before = 1e300;
  for (const double GBps : {10.0, 40.0, 160.0, 640.0}) {
    const MoeTime time = layer_of(model, run, nvswitch(8, {GBps, 0.5}).value());
    EXPECT_LE(time.layer_us, before) << GBps;
    before = time.layer_us;
  }
}

TEST(Moe, ChunksHideTransfers) {
  MoeModel model = small_moe();
  model.tokens = 8192;
  MoeRun run;
  const Network network = nvswitch(8, {100, 0.5}).value();
  const MoeTime whole = layer_of(model, run, network);
  run.chunks = 4;
  const MoeTime chunked = layer_of(model, run, network);
  EXPECT_LT(chunked.layer_us, whole.layer_us);
  EXPECT_EQ(chunked.dispatch_us, whole.dispatch_us);
  run.is_ideal = true;
  run.chunks = 1;
  const MoeTime ideal = layer_of(model, run, network);
  EXPECT_LT(ideal.layer_us, chunked.layer_us);
  EXPECT_EQ(ideal.exposed_us(), 0);
}

TEST(Moe, CountsOfATraceAreUsed) {
  const MoeModel model = small_moe();
  MoeRun run;
  const Network network = nvswitch(4, {100, 0.5}).value();
  run.counts = moe_counts(model, 4, 1.2, run.seed);
  const MoeTime given = layer_of(model, run, network);
  run.counts.clear();
  run.zipf = 1.2;
  EXPECT_EQ(layer_of(model, run, network).layer_us, given.layer_us);
}

TEST(Moe, ThousandGpus) {
  MoeModel model;
  model.experts = 1024;
  for (const Network& network : {rail_fat_tree(128, 8, 50, 64, 1).value(), torus({32, 32}, {100, 0.5}).value()}) {
    MoeRun run;
    run.group = 64;
    run.zipf = 0.5;
    const MoeTime time = layer_of(model, run, network);
    EXPECT_GT(time.dispatch_us, 0);
    EXPECT_GT(time.imbalance, 1);
  }
}

/// The GEMMs of the shared experts run while rows are on their way.
TEST(Moe, SharedExpertsHideArrivals) {
  MoeModel model = small_moe();
  const Network network = nvswitch(8, {100, 0.5}).value();
  const spec::Machine m = moe_machine();
  const MoeTime without = layer_of(model, {}, network);
  model.shared_experts = 2;
  const double launch = m.latency.launch_us.value;
  const double shared = spec::gemm_cost(m, {1024, 4096, 2048}).us + spec::gemm_cost(m, {1024, 2048, 2048}).us +
                        spec::reduce_us(m, 3.0 * 1024 * 2048 * 2) + 3 * launch;
  const MoeTime with = layer_of(model, {}, network);
  EXPECT_NEAR(with.shared_us, shared, 1e-6);
  EXPECT_EQ(with.sent_bytes, without.sent_bytes);
  const double added = with.compute_us - without.compute_us;  // their rows in the weighted sum, too
  EXPECT_GT(added, shared);
  EXPECT_LT(added, shared + 2);
  ASSERT_GT(without.dispatch_us, shared);
  EXPECT_NEAR(with.layer_us, without.layer_us + added - shared, 1e-3);  // all of their time is hidden
  MoeRun ideal;
  ideal.is_ideal = true;
  EXPECT_EQ(layer_of(model, ideal, network).exposed_us(), 0);
}

/// Ranks without experts send and sum, and compute nothing for others.
TEST(Moe, FewerExpertsThanRanksAndOtherPlaces) {
  MoeModel model = small_moe();
  model.experts = 3;
  model.top_k = 2;
  const Network network = nvswitch(8, {100, 0.5}).value();
  const MoeTime time = layer_of(model, {}, network);
  EXPECT_NEAR(time.imbalance, 8.0 / 3, 0.01);
  EXPECT_NEAR(time.sent_bytes, 1024 * 2 * 4096.0 * 7 / 8, 4096);
  MoeRun run;
  run.begin = {0, 0, 0, 1, 1, 1, 2, 2, 3};  // floor(3 r / 8)
  EXPECT_EQ(layer_of(model, run, network).layer_us, time.layer_us);
  run.begin = {0, 3, 3, 3, 3, 3, 3, 3, 3};
  base::Trace timeline;
  const MoeTime one = moe_layer(model, run, moe_machine(), network, &timeline).value();
  for (const base::Span& span : timeline.spans)
    for (const char* name : {"gate_up", "activation", "down"})
      EXPECT_FALSE(span.name == name && span.rank != 0) << name << " of rank " << span.rank;
  EXPECT_EQ(one.imbalance, 8);
  EXPECT_EQ(one.sent_bytes, 1024 * 4096.0 * 7 / 8);  // each token once
  EXPECT_EQ(one.copy_bytes, 2 * one.sent_bytes);
  model.experts = 21;  // no rank has what its neighbour has
  run.begin.clear();
  const MoeTime ragged = layer_of(model, run, network);
  EXPECT_GT(ragged.imbalance, 1.1);
  EXPECT_GE(ragged.layer_us, ragged.bound_us - 1e-3);
}

TEST(Moe, RefusesWhatCannotBe) {
  const auto refused = [](auto change) {
    MoeModel model = small_moe();
    MoeRun run;
    change(&model, &run);
    return moe_layer(model, run, moe_machine(), nvswitch(8).value()).status().code();
  };
  EXPECT_EQ(refused([](MoeModel*, MoeRun* r) { r->group = 3; }), Errc::invalid_argument);
  EXPECT_EQ(refused([](MoeModel* m, MoeRun*) { m->experts = 0; }), Errc::invalid_argument);
  EXPECT_EQ(refused([](MoeModel*, MoeRun* r) { r->chunks = 65; }), Errc::invalid_argument);
  EXPECT_EQ(refused([](MoeModel* m, MoeRun*) { m->top_k = 17; }), Errc::invalid_argument);
  EXPECT_EQ(refused([](MoeModel*, MoeRun* r) { r->zipf = -1; }), Errc::invalid_argument);
  EXPECT_EQ(refused([](MoeModel*, MoeRun* r) { r->counts = {1}; }), Errc::invalid_argument);
}

TEST(Moe, RefusesMoreTransfersOrCountsThanItCanHold) {
  MoeModel model = small_moe();
  model.experts = 4096;
  const auto message = [&](int group) {
    MoeRun run;
    run.group = group;
    return moe_layer(model, run, moe_machine(), rail_fat_tree(512, 8, 50, 64, 1).value()).status().message();
  };
  EXPECT_EQ(message(4096), "moe: 4096 ranks x 4096 in a group are 16777216 transfers, wanted at most 4194304");
  model.experts = 65536;
  EXPECT_EQ(message(128), "moe: 128 ranks of a group x 65536 experts are 8388608 counts, wanted at most 4194304");
}

}  // namespace
}  // namespace overlace::study
