// Whole runs of several groups as threads: rules against each other and against the text, orders of completion, bad
// values, groups that differ, checkpoints at every step.
#include "src/train/co2/replica.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <future>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "src/train/co2/options.h"
#include "tests/unit/train/co2/hostile_collective.h"
#include "tests/unit/train/co2/toy.h"

namespace overlace::train {
namespace {

using test::largest_difference;
using test::run_members;
using test::small;
using test::Toy;
using test::train;

/// Section by section what CO2 says, in fp64, with every quantity under its own name; knobs by round.
std::vector<double> co2_by_the_text(int groups, const std::vector<Co2Knobs>& rounds, double kappa) {
  Toy shape(0);
  const size_t n = shape.flat().size();
  std::vector<double> anchor, before, momentum(n), mean_before;
  for (const float value : shape.flat()) anchor.push_back(static_cast<double>(value));
  before = anchor;
  // Places inside the tensors, as Toy::step counts them.
  std::vector<double> place;
  for (const auto& tensor : shape.values())
    for (size_t i = 0; i < tensor.size(); ++i) place.push_back(static_cast<double>(i));
  for (const auto& [tau, alpha, beta] : rounds) {
    std::vector<double> mean(n);  // of the local models at the end of round t
    for (int g = 0; g < groups; ++g)
      for (size_t i = 0; i < n; ++i) {
        double x = anchor[i];
        for (int64_t k = 0; k < tau; ++k) x -= 0.1 * (x - 0.2 * g - 0.001 * place[i]);
        mean[i] += x / groups;
      }
    const std::vector<double> start = anchor;
    if (!mean_before.empty())
      for (size_t i = 0; i < n; ++i) {
        const double from_increment = before[i] - mean_before[i], from_anchor = anchor[i] - mean_before[i];
        momentum[i] = beta * momentum[i] + (1 - kappa) * from_increment + kappa * from_anchor;
        anchor[i] -= alpha * momentum[i];
      }
    before = start;
    mean_before = mean;
  }
  return anchor;
}

TEST(Co2Replica, FollowsTheTextOfTheAlgorithm) {
  const std::vector<Co2Knobs> constant(9, {3, 0.9, 0.4});
  std::vector<Co2Knobs> changing = constant;
  changing[0] = {1, 0.5, 0};
  changing[1] = {5, 0.6, 0.7};
  changing[2] = {2, 1.1, 0.1};
  for (const auto& rounds : {constant, changing})
    for (const double kappa : {0.0, 0.5, 1.0}) {
      Co2Options co2{
          .tau = 3, .outer_lr = 0.9, .outer_momentum = 0.4, .kappa = kappa, .keep = 0, .clip = MomentumClip::none};
      co2.schedule.assign(rounds.begin(), rounds.begin() + 3);
      int64_t steps = 0;
      for (const Co2Knobs& knobs : rounds) steps += knobs.tau;
      std::vector<float> anchor;
      run_members(3, 0, [&](AsyncCollective& outer) {
        Toy toy(outer.rank());
        Replica replica(small(co2), toy.parameters(), outer);
        for (int64_t i = 0; i < steps; ++i) {
          toy.step();
          replica.on_inner_step(0.1);
        }
        EXPECT_EQ(replica.round(), 9);
        if (outer.rank() == 1) anchor.assign(replica.anchor().begin(), replica.anchor().end());
        (void)replica.save();                         // nothing is on its way any more
        outer.wait(outer.all_reduce({}, {}), 20000);  // nobody leaves while others wait
      });
      const std::vector<double> wanted = co2_by_the_text(3, rounds, kappa);
      ASSERT_EQ(anchor.size(), wanted.size());
      for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(static_cast<double>(anchor[i]), wanted[i], 2e-6) << kappa;
    }
}

TEST(Co2Replica, BothPseudoGradientsAreOneFormula) {
  // R2 is R1 with beta - alpha / Lambda in place of beta, where that is 0 or more and nothing is flushed.
  const auto anchors = [](double kappa, double beta) {
    std::vector<float> anchor;
    run_members(2, 0, [&](AsyncCollective& outer) {
      Toy toy(outer.rank());
      Co2Options co2{.tau = 2, .outer_lr = 0.3, .outer_momentum = beta, .kappa = kappa, .keep = 0};
      co2.clip = MomentumClip::none;
      co2.gap = StalenessGap::constant;
      co2.gap_value = 1.5;
      Replica replica(small(co2), toy.parameters(), outer);
      for (int i = 0; i < 40; ++i) {
        toy.step();
        replica.on_inner_step(0.1);
      }
      if (outer.rank() == 0) anchor.assign(replica.anchor().begin(), replica.anchor().end());
      (void)replica.save();
      outer.wait(outer.all_reduce({}, {}), 20000);
    });
    return anchor;
  };
  const std::vector<float> second = anchors(1, 0.7), first = anchors(0, 0.7 - 0.3 / 1.5), other = anchors(0, 0.7);
  EXPECT_LE(largest_difference(first, second), 1e-6);
  EXPECT_GT(largest_difference(other, second), 1e-3);
}

TEST(Co2Replica, BlockingRulesAreOneWhereTheyShouldBe) {
  const auto run = [](OuterRule rule) {
    return train(3, {.rule = rule, .tau = 4, .outer_lr = 1, .outer_momentum = 0}, 20);
  };
  const auto local = run(OuterRule::local_sgd), slow = run(OuterRule::slow_mo), diloco = run(OuterRule::diloco);
  EXPECT_EQ(slow, local);
  EXPECT_EQ(diloco, local);
  EXPECT_EQ(local[0], local[1]);
  EXPECT_EQ(local[0], local[2]);
  // With momentum they are not.
  const auto with_momentum = [](OuterRule rule) {
    return train(3, {.rule = rule, .tau = 4, .outer_lr = 0.7, .outer_momentum = 0.5}, 20);
  };
  EXPECT_NE(with_momentum(OuterRule::slow_mo), with_momentum(OuterRule::diloco));
}

TEST(Co2Replica, LocalSgdIsTheMeanOfTheModels) {
  std::vector<Toy> toys = {Toy(0), Toy(1)};
  for (Toy& toy : toys)
    for (int i = 0; i < 4; ++i) toy.step();
  std::vector<float> mean = toys[0].flat();
  for (size_t i = 0; i < mean.size(); ++i) mean[i] = (mean[i] + toys[1].flat()[i]) / 2;
  const auto got = train(2, {.rule = OuterRule::local_sgd, .tau = 4}, 4);
  EXPECT_LE(largest_difference(got[0], mean), 1e-6);
}

TEST(Co2Replica, OneStepOfARoundIsPlainDataParallelTraining) {
  // Gradient descent: the mean of the groups' steps is the step of the mean gradient.
  Toy shape(0);
  std::vector<double> x;
  for (const float value : shape.flat()) x.push_back(static_cast<double>(value));
  std::vector<double> place;
  for (const auto& tensor : shape.values())
    for (size_t i = 0; i < tensor.size(); ++i) place.push_back(static_cast<double>(i));
  for (int step = 0; step < 50; ++step)
    for (size_t i = 0; i < x.size(); ++i) x[i] -= 0.1 * (x[i] - 0.2 * 0.5 - 0.001 * place[i]);
  const auto got = train(2, {.rule = OuterRule::local_sgd, .tau = 1}, 50);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(static_cast<double>(got[0][i]), x[i], 1e-6);
}

TEST(Co2Replica, AFlushGivesTheMeanOfTheLastModels) {
  for (const Co2Options& co2 :
       {Co2Options{.tau = 3, .kappa = 1}, Co2Options{.tau = 3, .outer_momentum = 0, .keep = 1}}) {
    std::vector<std::vector<float>> last(2);
    const auto ends = [&] {
      std::vector<std::vector<float>> got(2);
      run_members(2, 0, [&](AsyncCollective& outer) {
        Toy toy(outer.rank());
        Replica replica(small(co2), toy.parameters(), outer);
        const size_t me = static_cast<size_t>(outer.rank());
        for (int i = 0; i < 12; ++i) {
          toy.step();
          if (i == 11) last[me] = toy.flat();
          replica.on_inner_step(0.1);
        }
        replica.flush();
        got[me] = toy.flat();
        EXPECT_TRUE(std::equal(got[me].begin(), got[me].end(), replica.anchor().begin()));
      });
      return got;
    }();
    std::vector<float> mean = last[0];
    for (size_t i = 0; i < mean.size(); ++i) mean[i] = (mean[i] + last[1][i]) / 2;
    EXPECT_EQ(ends[0], ends[1]);
    EXPECT_LE(largest_difference(ends[0], mean), 1e-6);
  }
}

TEST(Co2Replica, AThousandOrdersOfCompletionGiveTheSameBits) {
  Co2Options co2 = Co2Options::stable(2);
  co2.gap = StalenessGap::adaptive;
  co2.check_every = 1;
  const auto wanted = train(3, co2, 9);
  EXPECT_EQ(wanted[0], wanted[1]);
  EXPECT_EQ(wanted[0], wanted[2]);
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    const auto got = train(3, co2, 9, seed);
    ASSERT_EQ(got, wanted) << "seed " << seed;
  }
  for (const OuterRule rule : {OuterRule::local_sgd, OuterRule::slow_mo, OuterRule::diloco}) {
    const auto plain = train(3, {.rule = rule, .tau = 2}, 9);
    for (uint64_t seed = 1; seed <= 20; ++seed) ASSERT_EQ(train(3, {.rule = rule, .tau = 2}, 9, seed), plain);
  }
}

TEST(Co2Replica, AnchorsAndCollectivesAreTheSameOnAllGroups) {
  std::mutex mutex;
  std::map<int, std::vector<uint64_t>> anchors, issued;
  run_members(3, 5, [&](AsyncCollective& outer) {
    Toy toy(outer.rank());
    Replica replica(small(Co2Options::stable(2)), toy.parameters(), outer);
    std::vector<uint64_t> mine, calls;
    for (int i = 0; i < 10; ++i) {
      toy.step();
      replica.on_inner_step(0.1);
      mine.push_back(replica.anchor_hash());
      calls.push_back(replica.engine().issued());
    }
    replica.flush();
    const std::lock_guard lock(mutex);
    anchors[outer.rank()] = mine;
    issued[outer.rank()] = calls;
  });
  EXPECT_EQ(anchors[0], anchors[1]);
  EXPECT_EQ(anchors[0], anchors[2]);
  EXPECT_EQ(issued[0], issued[1]);
  EXPECT_EQ(issued[0], issued[2]);
  EXPECT_NE(anchors[0].front(), anchors[0].back());
}

TEST(Co2Replica, ABadRoundIsDroppedByAllGroupsAlike) {
  run_members(2, 0, [&](AsyncCollective& outer) {
    Toy toy(outer.rank());
    Replica replica(small(Co2Options::stable(1)), toy.parameters(), outer);
    std::vector<uint64_t> anchors;
    for (int i = 0; i < 6; ++i) {
      toy.step();
      if (i == 2 && outer.rank() == 1) toy.values()[2][77] = std::nanf("");
      replica.on_inner_step(0.1);
      for (const float value : toy.flat()) ASSERT_TRUE(std::isfinite(value));
      anchors.push_back(replica.anchor_hash());
    }
    EXPECT_EQ(anchors[3], anchors[2]);  // the increment of step 2 comes in here, and is dropped
    EXPECT_NE(anchors[4], anchors[3]);
    std::vector<bool> dropped;
    for (const RoundStats& stats : replica.stats()) dropped.push_back(stats.is_dropped);
    EXPECT_EQ(dropped, (std::vector<bool>{false, false, true, false, false}));
    replica.flush();
  });
}

TEST(Co2Replica, ThreeBadRoundsInARowAreAnErrorOnAllGroups) {
  std::mutex mutex;
  int told = 0;
  run_members(2, 0, [&](AsyncCollective& outer) {
    Toy toy(outer.rank());
    Replica replica(small(Co2Options::stable(1)), toy.parameters(), outer);
    uint64_t last_good = 0;
    try {
      for (int i = 0; i < 9; ++i) {
        toy.step();
        if (i >= 3 && outer.rank() == 0) toy.values()[0][1] = std::numeric_limits<float>::infinity();
        replica.on_inner_step(0.1);
        if (i == 3) last_good = replica.anchor_hash();
        ASSERT_LT(i, 6);
      }
    } catch (const NonFinite& error) {
      EXPECT_NE(std::string(error.what()).find("3 rounds in a row"), std::string::npos) << error.what();
      EXPECT_EQ(replica.anchor_hash(), last_good);
      EXPECT_FALSE(replica.save().empty());
      const std::lock_guard lock(mutex);
      ++told;
    }
  });
  EXPECT_EQ(told, 2);
}

TEST(Co2Replica, TheGapFollowsTheInnerLearningRate) {
  Co2Options co2 = Co2Options::stable(2);
  co2.gap = StalenessGap::adaptive;
  // The learning rate that is told, from step 8, which is in round 4.
  const auto lambdas = [&](double later) {
    std::vector<double> seen;
    run_members(1, 0, [&](AsyncCollective& outer) {
      Toy toy(0);
      Replica replica(small(co2), toy.parameters(), outer);
      for (int i = 0; i < 16; ++i) {
        toy.step();
        replica.on_inner_step(i < 8 ? 0.1 : later);
      }
      replica.flush();
      for (const RoundStats& stats : replica.stats()) seen.push_back(stats.lambda);
    });
    return seen;
  };
  const std::vector<double> constant = lambdas(0.1), lower = lambdas(0.05), restart = lambdas(0.25);
  ASSERT_EQ(constant.size(), 8u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(constant[i], lower[i]) << i;  // boundaries 1 to 3
  EXPECT_GT(lower[3], constant[3]);                                      // C halves: the same S weighs more
  EXPECT_EQ(restart[3], 2);                                              // C = S
  EXPECT_LT(constant[3], 2);
}

/// SlowMo as its paper words it, in fp64: u = beta * u + (x_0 - mean of x_tau) / gamma; x_0 -= alpha * gamma * u.
std::vector<double> slow_mo_by_the_text(int groups, int tau, const std::vector<double>& gammas, double alpha,
                                        double beta) {
  Toy shape(0);
  std::vector<double> x, place;
  for (const float value : shape.flat()) x.push_back(static_cast<double>(value));
  for (const auto& tensor : shape.values())
    for (size_t i = 0; i < tensor.size(); ++i) place.push_back(static_cast<double>(i));
  std::vector<double> momentum(x.size());
  for (const double gamma : gammas)
    for (size_t i = 0; i < x.size(); ++i) {
      double mean = 0;
      for (int g = 0; g < groups; ++g) {
        double own = x[i];
        for (int k = 0; k < tau; ++k) own -= gamma * (own - 0.2 * g - 0.001 * place[i]);
        mean += own / groups;
      }
      momentum[i] = beta * momentum[i] + (x[i] - mean) / gamma;
      x[i] -= alpha * gamma * momentum[i];
    }
  return x;
}

TEST(Co2Replica, SlowMoOverTheLearningRateFollowsTheTextOfItsPaper) {
  const std::vector<double> gammas = {0.1, 0.05, 0.2, 0.2, 0.02};
  const auto train_with = [&](bool momentum_over_lr) {
    std::vector<float> end;
    run_members(2, 0, [&](AsyncCollective& outer) {
      Toy toy(outer.rank());
      Co2Options co2{.rule = OuterRule::slow_mo, .tau = 3, .outer_lr = 0.8, .outer_momentum = 0.5};
      co2.momentum_over_lr = momentum_over_lr;
      co2.warmup_sync_steps = 2;  // whose learning rates are of no round
      Replica replica(small(co2), toy.parameters(), outer);
      for (int i = 0; i < 2; ++i) replica.on_inner_step(0.7);
      for (const double gamma : gammas)
        for (int i = 0; i < 3; ++i) {
          toy.step(static_cast<float>(gamma));
          replica.on_inner_step(gamma);
        }
      if (outer.rank() == 1) end = toy.flat();
    });
    return end;
  };
  const std::vector<double> wanted = slow_mo_by_the_text(2, 3, gammas, 0.8, 0.5);
  const std::vector<float> got = train_with(true), without = train_with(false);
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(static_cast<double>(got[i]), wanted[i], 2e-6) << i;
  EXPECT_GT(largest_difference(got, without), 1e-3);
}

TEST(Co2Replica, GroupsThatDifferAtTheStartAreToldWhere) {
  std::mutex mutex;
  std::vector<std::string> texts;
  const auto expect_mismatch = [&](const std::function<void(AsyncCollective&)>& body) {
    texts.clear();
    run_members(3, 0, [&](AsyncCollective& outer) {
      try {
        body(outer);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const PlanMismatch& error) {
        const std::lock_guard lock(mutex);
        texts.push_back(error.what());
      }
    });
    EXPECT_EQ(texts.size(), 3u);
  };
  expect_mismatch([](AsyncCollective& outer) {
    Toy toy(outer.rank());
    if (outer.rank() == 2) toy.values()[2][129] += 1e-6f;
    Replica(small(Co2Options::stable(1)), toy.parameters(), outer);
  });
  for (const std::string& text : texts)
    EXPECT_NE(text.find("parameter p2 differs between groups 0 and 2"), std::string::npos) << text;
  expect_mismatch([](AsyncCollective& outer) {
    Toy toy(outer.rank());
    Replica(small(Co2Options::stable(outer.rank() == 1 ? 5 : 4)), toy.parameters(), outer);
  });
  for (const std::string& text : texts)
    EXPECT_NE(text.find("options and parameters' shapes differ between groups 0 and 1"), std::string::npos) << text;
  expect_mismatch([](AsyncCollective& outer) {
    Toy toy(outer.rank());
    Co2Options co2 = Co2Options::stable(4);
    co2.schedule.assign(100, {2, 1, 0.1});
    if (outer.rank() == 2) co2.schedule[99].outer_momentum = 0.2;  // long before it would be seen
    Replica(small(co2), toy.parameters(), outer);
  });
  for (const std::string& text : texts)
    EXPECT_NE(text.find("options and parameters' shapes differ between groups 0 and 2"), std::string::npos) << text;
}

TEST(Co2Replica, AnAnchorThatDriftsIsDesyncOnAllGroups) {
  std::mutex mutex;
  int told = 0;
  run_members(2, 0, [&](AsyncCollective& outer) {
    Toy toy(outer.rank());
    Co2Options co2 = Co2Options::stable(1);
    co2.check_every = 2;
    Replica replica(small(co2), toy.parameters(), outer);
    try {
      for (int i = 0; i < 8; ++i) {
        toy.step();
        if (i == 3 && outer.rank() == 1) const_cast<float*>(replica.anchor().data())[9] += 0.5f;
        replica.on_inner_step(0.1);
      }
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Desync& error) {
      EXPECT_NE(std::string(error.what()).find("round 4: anchor"), std::string::npos) << error.what();
      const std::lock_guard lock(mutex);
      ++told;
    }
  });
  EXPECT_EQ(told, 2);
}

TEST(Co2Replica, GoesOnFromACheckpointOfEveryStepWithTheSameBits) {
  for (const DType wire : {DType::fp32, DType::bf16})
    for (const OuterRule rule : {OuterRule::co2, OuterRule::eager, OuterRule::streaming, OuterRule::diloco}) {
      Co2Options co2{.rule = rule, .tau = 3};
      if (rule == OuterRule::co2) {
        co2.gap = StalenessGap::adaptive;
        co2.schedule = {{2, 0.5, 0.1}, {4, 0.8, 0}, {1, 1, 0.3}};
      } else {
        co2.schedule = {{3, 0.5, 0.1}, {3, 0.8, 0.3}};
      }
      const auto wanted = train(2, co2, 11, 0, wire);
      for (int stop = 0; stop <= 10; ++stop) {
        std::vector<std::string> saved(2);
        run_members(2, 7, [&](AsyncCollective& outer) {
          Toy toy(outer.rank());
          Replica replica(small(co2, wire), toy.parameters(), outer);
          for (int i = 0; i < stop; ++i) {
            toy.step();
            replica.on_inner_step(0.1);
          }
          saved[static_cast<size_t>(outer.rank())] = replica.save();
        });
        std::vector<std::vector<float>> ends(2);
        run_members(2, 8, [&](AsyncCollective& outer) {
          Toy toy(outer.rank());
          Replica replica(small(co2, wire), toy.parameters(), outer);
          replica.load(saved[static_cast<size_t>(outer.rank())]).or_throw();
          for (int i = stop; i < 11; ++i) {
            toy.step();
            replica.on_inner_step(0.1);
          }
          replica.flush();
          ends[static_cast<size_t>(outer.rank())] = toy.flat();
        });
        ASSERT_EQ(ends, wanted) << "stopped after step " << stop;
      }
    }
}

TEST(Co2Replica, GoesBackToACheckpointWhileARoundIsUnderWay) {
  for (const DType wire : {DType::fp32, DType::bf16}) {
    const Co2Options co2{.rule = OuterRule::co2, .tau = 3};
    const auto wanted = train(2, co2, 11, 0, wire);
    for (const int back : {1, 2, 3, 4, 5}) {
      std::vector<std::vector<float>> ends(2);
      run_members(2, 9, [&](AsyncCollective& outer) {
        Toy toy(outer.rank());
        Replica replica(small(co2, wire), toy.parameters(), outer);
        const auto steps = [&](int count) {
          for (int i = 0; i < count; ++i) {
            toy.step();
            replica.on_inner_step(0.1);
          }
        };
        steps(4);
        const std::string saved = replica.save();
        steps(back);
        replica.load(saved).or_throw();
        steps(7);
        replica.flush();
        ends[static_cast<size_t>(outer.rank())] = toy.flat();
      });
      ASSERT_EQ(ends, wanted) << "back by " << back;
    }
  }
}

TEST(Co2Replica, RefusesForeignAndDamagedCheckpoints) {
  std::string saved;
  run_members(1, 0, [&](AsyncCollective& outer) {
    Toy toy(0);
    saved = Replica(small(Co2Options::stable(2)), toy.parameters(), outer).save();
  });
  run_members(1, 0, [&](AsyncCollective& outer) {
    Toy toy(0);
    Replica replica(small(Co2Options::stable(2)), toy.parameters(), outer);
    const uint64_t before = replica.anchor_hash();
    EXPECT_EQ(replica.load("").code(), Errc::corrupt);
    EXPECT_EQ(replica.load(saved.substr(0, saved.size() - 1)).code(), Errc::corrupt);
    std::string other = saved;
    other[saved.size() / 2] = static_cast<char>(other[saved.size() / 2] ^ 1);
    EXPECT_EQ(replica.load(other).code(), Errc::corrupt);
    other = saved;
    other[8] = 9;
    EXPECT_EQ(replica.load(other).code(), Errc::version_mismatch);
    EXPECT_EQ(replica.anchor_hash(), before);
    EXPECT_TRUE(replica.load(saved).ok());
    Replica longer(small(Co2Options::stable(3)), toy.parameters(), outer);
    EXPECT_EQ(longer.load(saved).code(), Errc::stale);
  });
  run_members(2, 0, [&](AsyncCollective& outer) {
    Toy toy(0);
    Replica replica(small(Co2Options::stable(2)), toy.parameters(), outer);
    EXPECT_EQ(replica.load(saved).code(), Errc::stale);
  });
}

TEST(Co2Replica, LeavesMemoryToATransportThatMayStillWriteThere) {
  // Rank 0 ends with open tickets; rank 1 then completes them, which writes into the memory of both.
  test::HostileGroup group(2);
  test::HostileGroup::Member first(group, 0), second(group, 1);
  std::thread other;
  {
    Toy toy(0);
    std::promise<void> may_go_on;
    other = std::thread([&second, ready = may_go_on.get_future().share()] {
      Toy mine(1);
      Replica replica(small(Co2Options::stable(1)), mine.parameters(), second);
      ready.wait();
      mine.step();
      replica.on_inner_step(0.1);  // launches what rank 0 launched before: the sums are written
    });
    {
      Replica replica(small(Co2Options::stable(1)), toy.parameters(), first);
      toy.step();
      replica.on_inner_step(0.1);
    }
    may_go_on.set_value();
    other.join();
  }
}

TEST(Co2Replica, RefusesBadParameters) {
  run_members(1, 0, [&](AsyncCollective& outer) {
    Toy toy(0);
    EXPECT_THROW(Replica(small({}), {}, outer), InvalidArgument);
    std::vector<Parameter> parameters = toy.parameters();
    parameters[0].dtype = DType::i32;
    EXPECT_THROW(Replica(small({}), parameters, outer), InvalidArgument);
    parameters = toy.parameters();
    parameters[0].data = nullptr;
    EXPECT_THROW(Replica(small({}), parameters, outer), InvalidArgument);
    ReplicaOptions options = small({});
    options.shard_degree = 2;
    EXPECT_THROW(Replica(options, toy.parameters(), outer), InvalidArgument);
    options = small({});
    options.wire_dtype = DType::fp16;
    EXPECT_THROW(Replica(options, toy.parameters(), outer), InvalidArgument);
    options.wire_dtype = DType::i8;  // this transport takes no residuals
    EXPECT_THROW(Replica(options, toy.parameters(), outer), Unsupported);
  });
}

}  // namespace
}  // namespace overlace::train
