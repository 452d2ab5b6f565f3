// Groups that take other numbers of steps in a round, with other batches: means by the samples that each has seen.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "overlace/error.h"
#include "src/train/co2/options.h"
#include "tests/unit/train/co2/toy.h"

namespace overlace::train::test {
namespace {

struct Group {
  int64_t tau;
  double samples;
  int more = 0;  // steps behind the last whole round
};

Co2Options options_of(Co2Options co2, const Group& group) {
  co2.tau = group.tau;
  co2.samples = group.samples;
  return co2;
}

/// Parameters of each group after so many rounds, `more` steps and a flush.
std::vector<std::vector<float>> run(const std::vector<Group>& groups, const Co2Options& co2, int rounds,
                                    DType wire = DType::fp32, uint64_t seed = 0) {
  std::vector<std::vector<float>> ends(groups.size());
  run_members(static_cast<int>(groups.size()), seed, [&](AsyncCollective& outer) {
    const Group& group = groups[static_cast<size_t>(outer.rank())];
    Toy toy(outer.rank());
    Replica replica(small(options_of(co2, group), wire), toy.parameters(), outer);
    for (int64_t i = 0; i < rounds * group.tau + group.more; ++i) {
      toy.step();
      replica.on_inner_step(0.1);
    }
    replica.flush();
    ends[static_cast<size_t>(outer.rank())] = toy.flat();
  });
  return ends;
}

/// Replicas in fp64, by the text of the algorithm.
class Oracle {
 public:
  Oracle(std::vector<Group> groups, const Co2Options& co2) : groups_(std::move(groups)), co2_(co2) {
    anchor_ = to_double(Toy(0).flat());
    momentum_.resize(anchor_.size());
    for (size_t g = 0; g < groups_.size(); ++g) {
      x_.push_back(anchor_);
      kept_.emplace_back(anchor_.size());
    }
  }

  std::vector<double> run(int rounds) {
    for (int r = 0; r < rounds; ++r) {
      std::vector<int64_t> steps;
      for (const Group& group : groups_) steps.push_back(group.tau);
      round(steps);
    }
    std::vector<int64_t> steps;
    for (const Group& group : groups_) steps.push_back(group.more);
    round(steps);  // a flush ends it
    if (co2_.rule == OuterRule::co2) take(0, 0);
    return anchor_;
  }

 private:
  static std::vector<double> to_double(const std::vector<float>& values) { return {values.begin(), values.end()}; }

  void round(const std::vector<int64_t>& steps) {
    for (size_t g = 0; g < groups_.size(); ++g)
      for (int64_t k = 0; k < steps[g]; ++k) step(g);
    std::vector<std::vector<double>> sent;
    for (size_t g = 0; g < groups_.size(); ++g) {
      sent.emplace_back();
      for (size_t i = 0; i < anchor_.size(); ++i) sent.back().push_back(anchor_[i] - kept_[g][i] - x_[g][i]);
    }
    std::vector<double> mean(anchor_.size());
    double all = 0;
    for (size_t g = 0; g < groups_.size(); ++g) all += static_cast<double>(steps[g]) * groups_[g].samples;
    for (size_t g = 0; g < groups_.size() && all > 0; ++g)
      for (size_t i = 0; i < mean.size(); ++i)
        mean[i] += sent[g][i] * static_cast<double>(steps[g]) * groups_[g].samples / all;
    const bool is_stale = co2_.rule == OuterRule::co2;
    if (!is_stale) {
      pending_ = mean;
      is_pending_ = all > 0;
    }
    take(is_stale ? co2_.keep : 0, co2_.outer_momentum, &sent);
    if (is_stale) {
      pending_ = mean;
      is_pending_ = all > 0;
    }
  }

  void take(double keep, double beta, const std::vector<std::vector<double>>* sent = nullptr) {
    for (size_t i = 0; i < anchor_.size() && is_pending_; ++i) {
      const double d = pending_[i] - co2_.kappa * moved_ * momentum_[i];
      momentum_[i] = beta * momentum_[i] + d;
      const double nesterov = co2_.rule == OuterRule::diloco ? beta * momentum_[i] + d : momentum_[i];
      anchor_[i] -= co2_.outer_lr * nesterov;
    }
    moved_ = is_pending_ ? co2_.outer_lr : 0;
    for (size_t g = 0; g < groups_.size(); ++g)
      for (size_t i = 0; i < anchor_.size(); ++i) {
        kept_[g][i] = sent == nullptr ? 0 : co2_.outer_lr * keep * (*sent)[g][i];
        x_[g][i] = anchor_[i] - kept_[g][i];
      }
  }

  void step(size_t g) {
    size_t at = 0;
    for (const size_t count : {size_t{5}, size_t{0}, size_t{130}, size_t{1}})  // Toy's tensors
      for (size_t i = 0; i < count; ++i, ++at)
        x_[g][at] -= 0.1 * (x_[g][at] - 0.2 * static_cast<double>(g) - 0.001 * static_cast<double>(i));
  }

  const std::vector<Group> groups_;
  const Co2Options co2_;
  std::vector<double> anchor_, momentum_, pending_;
  std::vector<std::vector<double>> x_, kept_;
  bool is_pending_ = false;
  double moved_ = 0;
};

const std::vector<Group> kUnequal = {{4, 8, 3}, {2, 16, 0}, {1, 5, 0}};

TEST(Co2Unequal, FollowsTheTextInFp64) {
  std::vector<Co2Options> cases;
  for (const OuterRule rule : {OuterRule::local_sgd, OuterRule::slow_mo, OuterRule::diloco})
    cases.push_back({.rule = rule,
                     .outer_lr = rule == OuterRule::diloco ? 0.7 : 1,
                     .outer_momentum = rule == OuterRule::local_sgd ? 0 : 0.4,
                     .keep = 0});
  for (const double kappa : {0.0, 1.0})
    for (const double keep : {0.0, 0.8}) {
      if (kappa > 0 && keep > 0) continue;
      cases.push_back({.outer_lr = 1, .outer_momentum = 0.3, .kappa = kappa, .keep = keep});
    }
  for (Co2Options& co2 : cases) {
    co2.clip = MomentumClip::none;
    co2.check_every = 1;
    for (const std::vector<Group>& groups : {kUnequal, std::vector<Group>{{3, 1, 0}, {5, 1, 0}}})
      for (const int rounds : {0, 1, 2, 9}) {
        const std::vector<double> wanted = Oracle(groups, co2).run(rounds);
        const auto ends = run(groups, co2, rounds);
        for (const std::vector<float>& end : ends) {
          ASSERT_EQ(end, ends[0]);
          for (size_t i = 0; i < end.size(); ++i)
            ASSERT_NEAR(static_cast<double>(end[i]), wanted[i], 5e-6)
                << kOuterRuleNames[static_cast<int>(co2.rule)] << " kappa " << co2.kappa << " keep " << co2.keep << ", "
                << rounds << " rounds, element " << i;
        }
      }
  }
}

TEST(Co2Unequal, EqualGroupsHaveTheBitsOfThoseWithoutSamples) {
  for (const DType wire : {DType::fp32, DType::bf16})
    for (const OuterRule rule : {OuterRule::co2, OuterRule::local_sgd, OuterRule::diloco}) {
      Co2Options co2{.rule = rule, .tau = 3};
      co2.clip = MomentumClip::none;
      const auto got = run({{3, 7, 1}, {3, 7, 1}}, co2, 6, wire), wanted = train(2, co2, 19, 0, wire);
      const auto whole = run({{3, 7, 0}, {3, 7, 0}}, co2, 6, wire), whole_wanted = train(2, co2, 18, 0, wire);
      if (rule != OuterRule::co2 || wire == DType::fp32) {  // the empty round of a flush sends bf16's residual
        EXPECT_EQ(whole, whole_wanted);
      }
      EXPECT_LT(largest_difference(got[0], wanted[0]), wire == DType::fp32 ? 1e-6 : 1e-2);
    }
}

TEST(Co2Unequal, AFlushWithoutAStepChangesNothing) {
  for (const OuterRule rule : {OuterRule::co2, OuterRule::slow_mo, OuterRule::diloco})
    run_members(2, 0, [&](AsyncCollective& outer) {
      const Group group = outer.rank() == 0 ? Group{4, 8} : Group{1, 3};
      Toy toy(outer.rank());
      Replica replica(small(options_of({.rule = rule}, group)), toy.parameters(), outer);
      const std::vector<float> start = toy.flat();
      replica.flush();
      EXPECT_EQ(toy.flat(), start);
      for (int64_t i = 0; i < 3 * group.tau; ++i) {
        toy.step();
        replica.on_inner_step(0.1);
      }
      replica.flush();
      const std::vector<float> once = toy.flat();
      const uint64_t hash = replica.anchor_hash();
      replica.flush();
      EXPECT_EQ(toy.flat(), once);
      EXPECT_EQ(replica.anchor_hash(), hash);
    });
}

TEST(Co2Unequal, StatisticsSayTheGroupsOwnSteps) {
  run_members(2, 0, [&](AsyncCollective& outer) {
    const Group group = outer.rank() == 0 ? Group{4, 0.3} : Group{3, 1.7};
    Toy toy(outer.rank());
    Replica replica(small(options_of({}, group)), toy.parameters(), outer);
    for (int64_t i = 0; i < 3 * group.tau; ++i) {
      toy.step();
      replica.on_inner_step(0.1);
    }
    ASSERT_EQ(replica.stats().size(), 2u);
    for (const RoundStats& stats : replica.stats()) EXPECT_EQ(stats.steps, group.tau);
    replica.flush();
  });
}

TEST(Co2Unequal, GoesOnFromEveryStepWithTheSameBits) {
  const std::vector<Group> groups = {{3, 8, 1}, {2, 16, 1}};
  constexpr int kRounds = 4;
  const Co2Options co2{.outer_momentum = 0.2};
  for (const DType wire : {DType::fp32, DType::bf16}) {
    const auto wanted = run(groups, co2, kRounds, wire);
    for (int round = 0; round < kRounds; ++round)
      for (int64_t k = 0; k < 3; ++k) {
        // All groups are in the same round.
        const auto stop = [&](const Group& g) { return round * g.tau + std::min(k, g.tau - 1); };
        std::vector<std::string> saved(2);
        const auto go = [&](AsyncCollective& outer, bool is_later, std::vector<std::vector<float>>* ends) {
          const auto rank = static_cast<size_t>(outer.rank());
          const Group& group = groups[rank];
          Toy toy(outer.rank());
          Replica replica(small(options_of(co2, group), wire), toy.parameters(), outer);
          if (is_later) replica.load(saved[rank]).or_throw();
          const int64_t last = is_later ? kRounds * group.tau + group.more : stop(group);
          for (int64_t i = is_later ? stop(group) : 0; i < last; ++i) {
            toy.step();
            replica.on_inner_step(0.1);
          }
          if (!is_later) saved[rank] = replica.save();
          if (is_later) replica.flush();
          if (is_later) (*ends)[rank] = toy.flat();
        };
        std::vector<std::vector<float>> ends(2);
        run_members(2, 7, [&](AsyncCollective& outer) { go(outer, false, nullptr); });
        run_members(2, 8, [&](AsyncCollective& outer) { go(outer, true, &ends); });
        ASSERT_EQ(ends, wanted) << "round " << round << ", step " << k;
      }
  }
}

TEST(Co2Unequal, ACheckpointIsOfItsOwnTauAndSamples) {
  std::vector<std::string> saved(2);
  const auto replica_with = [&](AsyncCollective& outer, int64_t tau, double samples, auto&& body) {
    Toy toy(outer.rank());
    Replica replica(small(options_of({}, {tau, samples})), toy.parameters(), outer);
    body(replica);
  };
  run_members(2, 0, [&](AsyncCollective& outer) {
    replica_with(outer, 3 + outer.rank(), 8, [&](Replica& r) { saved[static_cast<size_t>(outer.rank())] = r.save(); });
  });
  const auto code = [&](int64_t tau, double samples) {
    std::atomic<int> found{-1};
    run_members(2, 0, [&](AsyncCollective& outer) {
      replica_with(outer, tau + outer.rank(), samples, [&](Replica& r) {
        found = static_cast<int>(r.load(saved[static_cast<size_t>(outer.rank())]).code());
      });
    });
    return static_cast<Errc>(found.load());
  };
  EXPECT_EQ(code(3, 8), Errc::ok);
  EXPECT_EQ(code(4, 8), Errc::stale);
  EXPECT_EQ(code(3, 9), Errc::stale);
}

TEST(Co2Unequal, EqualAndUnequalGroupsDoNotMix) {
  std::atomic<int> told{0};
  run_members(2, 0, [&](AsyncCollective& outer) {
    Toy toy(outer.rank());
    Co2Options co2{.tau = 3};
    if (outer.rank() == 1) co2.samples = 8;
    EXPECT_THROW(Replica(small(co2), toy.parameters(), outer), PlanMismatch);
    ++told;
  });
  EXPECT_EQ(told, 2);
}

TEST(Co2Unequal, RefusesWhatEqualGroupsAloneCanHave) {
  const auto text_of = [](const Co2Options& co2) { return std::string(resolve(co2).status().message()); };
  const auto expect = [&](const Co2Options& co2, const char* text) {
    EXPECT_NE(text_of(co2).find(text), std::string::npos) << text_of(co2);
  };
  expect({.samples = -1}, "samples is -1, wanted: 0 to 1e15");
  expect({.samples = std::nan("")}, "samples is nan, wanted");
  expect({.rule = OuterRule::eager, .samples = 2}, "samples is 2 with rule eager, wanted: 0, or co2");
  expect({.rule = OuterRule::streaming, .samples = 2}, "samples is 2 with rule streaming, wanted: 0, or co2");
  expect({.gap = StalenessGap::adaptive, .samples = 2}, "samples is 2 with gap adaptive");
  expect({.warmup_sync_steps = 3, .samples = 2}, "samples is 2 with warmup_sync_steps 3 and cooldown_sync_steps 0");
  EXPECT_EQ(text_of({.gap = StalenessGap::constant, .gap_value = 2, .samples = 2}), "");
}

}  // namespace
}  // namespace overlace::train::test
