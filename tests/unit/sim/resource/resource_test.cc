#include <gtest/gtest.h>

#include <map>

#include "src/sim/engine/engine.h"
#include "src/sim/resource/fluid.h"

namespace overlace::sim {
namespace {

using spec::Load;

/// Flows with the event handle 10 + id, until all have ended; ends by handle.
std::map<uint32_t, Time> run_to_end(Fluid& fluid, EventQueue& queue) {
  std::map<uint32_t, Time> ends;
  fluid.settle(queue.now(), queue);
  while (!queue.empty()) {
    const Event event = queue.pop();
    if (ends.count(event.handle) != 0 || !fluid.finish(event.t_ps, event.handle - 10)) continue;
    ends[event.handle] = event.t_ps;
    fluid.settle(event.t_ps, queue);
  }
  return ends;
}

TEST(Fluid, OneFlowTakesWorkOverRate) {
  Fluid fluid;
  EventQueue queue;
  const uint32_t link = fluid.add_resource(4);
  const Demand demand{link, 1};
  (void)fluid.start(0, {.work = 1000, .most_per_ps = 2, .demands = {&demand, 1}, .handle = 10});
  (void)fluid.start(0, {.work = 1001, .most_per_ps = 100, .handle = 11});
  EXPECT_EQ(run_to_end(fluid, queue), (std::map<uint32_t, Time>{{10, 500}, {11, 11}}));
  EXPECT_EQ(fluid.used(link), 1000);
}

/// Links of 100, 20 and 100; one flow crosses the first two, one the first alone: 20 and 80, not 20 and 50.
TEST(Fluid, IsMaxMinFair) {
  Fluid fluid;
  EventQueue queue;
  const uint32_t a = fluid.add_resource(100), b = fluid.add_resource(20), c = fluid.add_resource(100);
  const Demand crossing[] = {{a, 1}, {b, 1}, {c, 1}}, first{a, 1}, third{c, 1};
  const uint32_t x = fluid.start(0, {.work = 1000, .most_per_ps = 1e9, .demands = crossing, .handle = 10});
  const uint32_t y = fluid.start(0, {.work = 1000, .most_per_ps = 1e9, .demands = {&first, 1}, .handle = 11});
  const uint32_t z = fluid.start(0, {.work = 1000, .most_per_ps = 1e9, .demands = {&third, 1}, .handle = 12});
  fluid.settle(0, queue);
  EXPECT_DOUBLE_EQ(fluid.rate(x), 20);
  EXPECT_DOUBLE_EQ(fluid.rate(y), 80);
  EXPECT_DOUBLE_EQ(fluid.rate(z), 80);
}

TEST(Fluid, SharesInProportionToWeightsAndCaps) {
  Fluid fluid;
  EventQueue queue;
  const Demand demand{fluid.add_resource(90), 1};
  const uint32_t x = fluid.start(0, {.work = 1, .most_per_ps = 1e9, .demands = {&demand, 1}, .handle = 10});
  const uint32_t y =
      fluid.start(0, {.work = 1, .most_per_ps = 1e9, .weight = 2, .demands = {&demand, 1}, .handle = 11});
  fluid.settle(0, queue);
  EXPECT_DOUBLE_EQ(fluid.rate(x), 30);
  EXPECT_DOUBLE_EQ(fluid.rate(y), 60);
  const uint32_t z = fluid.start(0, {.work = 1, .most_per_ps = 6, .demands = {&demand, 1}, .handle = 12});
  fluid.settle(0, queue);
  EXPECT_DOUBLE_EQ(fluid.rate(z), 6);
  EXPECT_DOUBLE_EQ(fluid.rate(x), 28);
}

TEST(Fluid, LowerClassesGetWhatIsLeft) {
  Fluid fluid;
  EventQueue queue;
  const Demand demand{fluid.add_resource(10), 1};
  const auto add = [&](uint32_t priority, double most, uint32_t handle) {
    return fluid.start(
        0, {.work = 100, .most_per_ps = most, .priority = priority, .demands = {&demand, 1}, .handle = handle});
  };
  const uint32_t low = add(2, 100, 10), high = add(0, 7, 11), middle = add(1, 2, 12);
  fluid.settle(0, queue);
  EXPECT_DOUBLE_EQ(fluid.rate(high), 7);
  EXPECT_DOUBLE_EQ(fluid.rate(middle), 2);
  EXPECT_DOUBLE_EQ(fluid.rate(low), 1);
  const uint32_t full = add(0, 3, 13);  // nothing is left: both stop, and go on later
  fluid.settle(0, queue);
  EXPECT_DOUBLE_EQ(fluid.rate(full), 3);
  EXPECT_EQ(fluid.rate(low), 0);
  const auto ends = run_to_end(fluid, queue);
  EXPECT_EQ(ends.at(11), 15u);
  EXPECT_EQ(ends.at(13), 34u);
  EXPECT_EQ(ends.size(), 4u);
}

/// Rates change at 50: 100 bytes are done by then, the remaining 900 go at half the rate.
TEST(Fluid, KeepsWorkDoneWhenRatesChange) {
  Fluid fluid;
  EventQueue queue;
  const Demand demand{fluid.add_resource(2), 1};
  (void)fluid.start(0, {.work = 1000, .most_per_ps = 2, .demands = {&demand, 1}, .handle = 10});
  fluid.settle(0, queue);
  (void)fluid.start(50, {.work = 400, .most_per_ps = 2, .demands = {&demand, 1}, .handle = 11});
  fluid.settle(50, queue);
  EXPECT_EQ(run_to_end(fluid, queue), (std::map<uint32_t, Time>{{10, 700}, {11, 450}}));
}

TEST(Fluid, ContentionSlowsByItsFactorWhileBothRun) {
  Fluid fluid(2);
  EventQueue queue;
  const spec::Contention list[] = {{Load::gemm_tensor, Load::ce_in, {2.0}}};
  fluid.set_contention(list);
  const Presence gemm{0, Load::gemm_tensor}, elsewhere{1, Load::gemm_tensor};
  const Presence copy[] = {{1, Load::ce_out}, {0, Load::ce_in}};
  const uint32_t slowed = fluid.start(0, {.work = 1000, .most_per_ps = 1, .presences = {&gemm, 1}, .handle = 10});
  (void)fluid.start(0, {.work = 1000, .most_per_ps = 1, .presences = {&elsewhere, 1}, .handle = 11});
  (void)fluid.start(0, {.work = 600, .most_per_ps = 1, .presences = copy, .handle = 12});
  fluid.settle(0, queue);
  EXPECT_DOUBLE_EQ(fluid.rate(slowed), 0.5);
  const auto ends = run_to_end(fluid, queue);
  EXPECT_EQ(ends, (std::map<uint32_t, Time>{{10, 1300}, {11, 1000}, {12, 600}}));
  EXPECT_EQ(fluid.lost_to_contention(slowed), 300u);
}

/// Random flows over random links: no link above its capacity, nobody could have more without taking from the poorer.
TEST(Fluid, RandomFlowsAreMaxMinFair) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Fluid fluid;
    EventQueue queue;
    std::vector<double> capacity;
    for (uint64_t r = 0; r < 6; ++r) {
      capacity.push_back(1 + static_cast<double>(random_bits(seed, r, 0, 0) % 100));
      (void)fluid.add_resource(capacity.back());
    }
    std::vector<std::vector<Demand>> demands;
    std::vector<double> most;
    for (uint64_t f = 0; f < 12; ++f) {
      demands.emplace_back();
      for (uint32_t r = 0; r < 6; ++r) {
        if (random_bits(seed, f, r, 1) % 3 == 0) demands.back().push_back({r, 1});
      }
      most.push_back(1 + static_cast<double>(random_bits(seed, f, 0, 2) % 50));
      (void)fluid.start(0, {.work = 1000,
                            .most_per_ps = most.back(),
                            .demands = demands.back(),
                            .handle = static_cast<uint32_t>(10 + f)});
    }
    fluid.settle(0, queue);
    std::vector<double> used(6, 0), largest(6, 0);
    for (uint32_t f = 0; f < 12; ++f) {
      for (const Demand& d : demands[f]) {
        used[d.resource] += fluid.rate(f);
        largest[d.resource] = std::max(largest[d.resource], fluid.rate(f));
      }
    }
    for (size_t r = 0; r < 6; ++r) ASSERT_LE(used[r], capacity[r] * (1 + 1e-9)) << seed;
    for (uint32_t f = 0; f < 12; ++f) {
      bool has_bottleneck = fluid.rate(f) >= most[f] * (1 - 1e-9);
      for (const Demand& d : demands[f]) {
        const bool is_full = used[d.resource] >= capacity[d.resource] * (1 - 1e-9);
        has_bottleneck = has_bottleneck || (is_full && fluid.rate(f) >= largest[d.resource] * (1 - 1e-9));
      }
      ASSERT_TRUE(has_bottleneck) << "seed " << seed << " flow " << f;
    }
    EXPECT_EQ(run_to_end(fluid, queue).size(), 12u);
  }
}

}  // namespace
}  // namespace overlace::sim
