// Order of a boundary, phases, invariants of tickets.
#include "src/train/co2/engine.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/train/co2/options.h"

namespace overlace::train {
namespace {

using Kind = Action::Kind;

Co2Options options(OuterRule rule, int64_t tau) {
  Co2Options given;
  given.rule = rule;
  given.tau = tau;
  return *resolve(given);
}

std::vector<std::string> all_due(Engine& engine) {
  std::vector<std::string> names;
  for (Action action = engine.next(); action.kind != Kind::none; action = engine.next()) {
    names.push_back(action.to_string());
    engine.done(action);
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(Co2Engine, OrderOfStaleBoundaries) {
  Engine engine(options(OuterRule::co2, 2), 3, 2, 1);
  EXPECT_EQ(all_due(engine), (Names{"anchor round 0"}));
  ASSERT_TRUE(engine.on_inner_step().ok());
  EXPECT_TRUE(all_due(engine).empty());
  ASSERT_TRUE(engine.on_inner_step().ok());
  // Nothing to wait for: the pipeline fills.
  EXPECT_EQ(all_due(engine), (Names{"begin round 0", "pass bucket 0 of round 0", "launch bucket 0 of round 0",
                                    "pass bucket 1 of round 0", "launch bucket 1 of round 0", "moved round 0",
                                    "end round 0", "launch header of round 0"}));
  EXPECT_EQ(engine.open_tickets(), (std::vector<int>{-1, 0, 1}));
  ASSERT_TRUE(engine.on_inner_step().ok());
  ASSERT_TRUE(engine.on_inner_step().ok());
  EXPECT_EQ(all_due(engine),
            (Names{"wait header of round 0", "begin round 1", "wait bucket 0 of round 0", "pass bucket 0 of round 1",
                   "launch bucket 0 of round 1", "wait bucket 1 of round 0", "pass bucket 1 of round 1",
                   "launch bucket 1 of round 1", "moved round 1", "end round 1", "launch header of round 1"}));
  ASSERT_TRUE(engine.flush().ok());
  EXPECT_EQ(all_due(engine),
            (Names{"wait header of round 1", "begin round 2", "wait bucket 0 of round 1", "pass bucket 0 of round 2",
                   "wait bucket 1 of round 1", "pass bucket 1 of round 2", "moved round 2"}));
  EXPECT_TRUE(engine.open_tickets().empty());
  ASSERT_TRUE(engine.flush().ok());
  EXPECT_TRUE(all_due(engine).empty());
}

TEST(Co2Engine, SaysBeforeAStepWhetherSomethingWillBeDueBehindIt) {
  for (const OuterRule rule : {OuterRule::co2, OuterRule::slow_mo, OuterRule::streaming}) {
    Engine engine(options(rule, 4), 3, 2, 1, {0, 1});
    (void)all_due(engine);
    for (int step = 0; step < 12; ++step) {
      const EngineState before = engine.state();
      const bool said = engine.next_step_has_actions();
      EXPECT_EQ(engine.state(), before);
      ASSERT_TRUE(engine.on_inner_step().ok());
      EXPECT_EQ(said, !all_due(engine).empty()) << step;
    }
    ASSERT_TRUE(engine.flush().ok());
    EXPECT_FALSE(engine.next_step_has_actions()) << "a flush is under way";
  }
}

TEST(Co2Engine, OrderOfABlockingBoundary) {
  Engine engine(options(OuterRule::slow_mo, 1), 3, 1, 2);
  (void)all_due(engine);
  ASSERT_TRUE(engine.on_inner_step().ok());
  EXPECT_EQ(all_due(engine),
            (Names{"pass bucket 0 of round 0", "launch bucket 0 of round 0", "reduce_sums round 0", "end round 0",
                   "launch header of round 0", "wait header of round 0", "begin round 0", "wait bucket 0 of round 0",
                   "pass bucket 0 of round 0", "moved round 0"}));
  EXPECT_TRUE(engine.open_tickets().empty());
  ASSERT_TRUE(engine.flush().ok());
  EXPECT_TRUE(all_due(engine).empty());
}

TEST(Co2Engine, OrderOfStreamedFragments) {
  Co2Options given = options(OuterRule::streaming, 4);
  given.fragments = 2;
  Engine engine(given, 3, 3, 2, {0, 0, 1});
  (void)all_due(engine);
  const auto step = [&] {
    EXPECT_TRUE(engine.on_inner_step().ok());
    return all_due(engine);
  };
  EXPECT_TRUE(step().empty());
  EXPECT_EQ(step(),
            (Names{"pass bucket 0 of round 0", "launch bucket 0 of round 0", "pass bucket 1 of round 0",
                   "launch bucket 1 of round 0", "reduce_sums round 0", "end round 0", "launch header of round 0"}));
  EXPECT_EQ(engine.open_tickets(), (std::vector<int>{-1, 0, 1}));
  const EngineState between = engine.state();
  EXPECT_EQ(step(),
            (Names{"wait header of round 0", "begin round 0", "wait bucket 0 of round 0", "pass bucket 0 of round 0",
                   "wait bucket 1 of round 0", "pass bucket 1 of round 0", "moved round 0"}));
  EXPECT_TRUE(engine.open_tickets().empty());
  EXPECT_EQ(step(), (Names{"pass bucket 2 of round 1", "launch bucket 2 of round 1", "reduce_sums round 1",
                           "end round 1", "launch header of round 1"}));
  ASSERT_TRUE(engine.flush().ok());
  const Names flushed = all_due(engine);
  ASSERT_EQ(flushed.size(), 5 + 9 + 9u);
  EXPECT_EQ(flushed[4], "moved round 1");
  EXPECT_EQ(flushed[5], "pass bucket 0 of round 2");
  EXPECT_EQ(flushed.back(), "moved round 2");
  ASSERT_TRUE(engine.flush().ok());
  EXPECT_TRUE(all_due(engine).empty());  // groups are alike
  // A checkpoint knows which buckets are on their way.
  Engine other(given, 3, 3, 2, {0, 0, 1});
  (void)all_due(other);
  ASSERT_TRUE(other.load(between).ok());
  EXPECT_EQ(other.open_tickets(), (std::vector<int>{-1, 0, 1}));
  EngineState beyond = between;
  beyond.step = 2;
  EXPECT_EQ(other.load(beyond).code(), Errc::corrupt);
}

TEST(Co2Engine, AStreamedFragmentComesInBeforeTheNextOneGoes) {
  Co2Options given = options(OuterRule::streaming, 2);
  given.fragments = 2;  // one step from exchange to exchange
  for (const int64_t delay : {0, 1}) {
    given.delay = delay;
    Engine engine(given, 2, 2, 1, {0, 1});
    (void)all_due(engine);
    ASSERT_TRUE(engine.on_inner_step().ok());
    const Names first = all_due(engine);
    EXPECT_EQ(first.size(), delay == 0 ? 9u : 4u);
    ASSERT_TRUE(engine.on_inner_step().ok());
    const Names second = all_due(engine);
    EXPECT_EQ(second[0], delay == 0 ? "pass bucket 1 of round 1" : "wait header of round 0");
    EXPECT_EQ(second.size(), 9u);
  }
}

TEST(Co2Engine, AFlushInsideARoundEndsTheRoundFirst) {
  Engine engine(options(OuterRule::co2, 4), 2, 1, 1);
  (void)all_due(engine);
  ASSERT_TRUE(engine.on_inner_step().ok());
  ASSERT_TRUE(engine.flush().ok());
  std::vector<Action> ends;
  for (Action action = engine.next(); action.kind != Kind::none; action = engine.next()) {
    if (action.kind == Kind::end) ends.push_back(action);
    engine.done(action);
  }
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].steps, 1);
  EXPECT_EQ(engine.state().round, 1);
  EXPECT_EQ(engine.state().has_pending, 0);
}

TEST(Co2Engine, RoundsFollowTheSchedule) {
  for (const OuterRule rule : {OuterRule::co2, OuterRule::diloco}) {
    Co2Options given = options(rule, 2);
    given.schedule = {{1, 0.25, 0.5}, {3, 0.5, 0.25}, {2, 0.75, 0}};
    Engine engine(given, 2, 1, 1);
    (void)all_due(engine);
    std::vector<int> ends;
    std::vector<double> alphas, betas;
    for (int step = 1; step <= 10; ++step) {
      const bool is_boundary = engine.next_step_has_actions();
      ASSERT_TRUE(engine.on_inner_step().ok());
      EXPECT_EQ(is_boundary, engine.next().kind != Kind::none) << step;
      for (Action action = engine.next(); action.kind != Kind::none; action = engine.next()) {
        if (action.kind == Kind::end) ends.push_back(step);
        if (action.kind == Kind::begin) {
          alphas.push_back(engine.knobs(action, 1).alpha);
          betas.push_back(engine.knobs(action, 1).beta);
        }
        engine.done(action);
      }
    }
    EXPECT_EQ(ends, (std::vector<int>{1, 4, 6, 8, 10}));
    const double alpha = given.outer_lr, beta = given.outer_momentum;
    EXPECT_EQ(alphas, (std::vector<double>{0.25, 0.5, 0.75, alpha, alpha}));
    EXPECT_EQ(betas, (std::vector<double>{0.5, 0.25, 0, beta, beta}));
    // A step of a round that is longer than the others, and one that is none.
    EXPECT_EQ(engine.load({.round = 1, .step = 2, .phase = 1}).code(), Errc::ok);
    EXPECT_EQ(engine.load({.round = 2, .step = 2, .phase = 1}).code(), Errc::corrupt);
  }
}

TEST(Co2Engine, ARankWithoutElementsStillSendsItsHeader) {
  Engine engine(options(OuterRule::co2, 1), 2, 0, 2);
  (void)all_due(engine);
  ASSERT_TRUE(engine.on_inner_step().ok());
  EXPECT_EQ(all_due(engine), (Names{"begin round 0", "reduce_sums round 0", "moved round 0", "end round 0",
                                    "launch header of round 0"}));
}

TEST(Co2Engine, WarmUpAndCoolDown) {
  Co2Options given = options(OuterRule::co2, 2);
  given.warmup_sync_steps = 2;
  given.cooldown_sync_steps = 2;
  given.total_steps = 7;
  Engine engine(given, 2, 1, 1);
  EXPECT_EQ(engine.phase(), Engine::Phase::warmup);
  std::vector<bool> synchronous;
  std::vector<size_t> due;
  for (int i = 0; i < 7; ++i) {
    synchronous.push_back(engine.wants_gradient_mean());
    ASSERT_TRUE(engine.on_inner_step().ok());
    due.push_back(all_due(engine).size());
  }
  EXPECT_EQ(synchronous, (std::vector<bool>{true, true, false, false, false, true, true}));
  // Step 2 anchors; step 4 is boundary 0; step 5 ends a partial round, flushes and averages; then plain steps.
  EXPECT_EQ(due, (std::vector<size_t>{0, 1, 0, 6, 8 + 5 + 1, 0, 0}));
  EXPECT_TRUE(engine.open_tickets().empty());
}

TEST(Co2Engine, RefusesWhatIsOutOfOrder) {
  Engine engine(options(OuterRule::co2, 1), 2, 2, 1);
  EXPECT_EQ(engine.on_inner_step().code(), Errc::invalid_argument);  // the anchor is due
  (void)all_due(engine);
  ASSERT_TRUE(engine.on_inner_step().ok());
  EXPECT_EQ(engine.on_inner_step().code(), Errc::invalid_argument);
  EXPECT_EQ(engine.flush().code(), Errc::invalid_argument);
  Action wrong = engine.next();
  wrong.bucket = 1;
  EXPECT_THROW(engine.done(wrong), Internal);
  EXPECT_THROW(engine.done({}), Internal);
}

TEST(Co2Engine, IssuesTheSameOnAllRanks) {
  Engine first(options(OuterRule::co2, 3), 2, 2, 1), second(options(OuterRule::co2, 3), 2, 2, 1);
  for (int i = 0; i < 11; ++i) {
    ASSERT_TRUE(first.on_inner_step().code() != Errc::internal);
    (void)all_due(first);
  }
  const uint64_t before = first.issued();
  for (int i = 0; i < 11; ++i) {
    ASSERT_TRUE(second.on_inner_step().code() != Errc::internal);
    (void)all_due(second);
  }
  EXPECT_EQ(first.issued(), second.issued());
  ASSERT_TRUE(first.flush().ok());
  (void)all_due(first);
  EXPECT_NE(first.issued(), before);
}

TEST(Co2Engine, GoesOnFromItsState) {
  for (int stop = 0; stop < 9; ++stop) {
    Engine whole(options(OuterRule::co2, 3), 2, 2, 1), resumed(options(OuterRule::co2, 3), 2, 2, 1);
    (void)all_due(whole);
    for (int i = 0; i < stop; ++i) {
      ASSERT_TRUE(whole.on_inner_step().ok());
      (void)all_due(whole);
    }
    ASSERT_TRUE(resumed.load(whole.state()).ok());
    EXPECT_EQ(resumed.open_tickets(), whole.open_tickets());
    for (int i = 0; i < 5; ++i) {
      ASSERT_TRUE(whole.on_inner_step().ok());
      ASSERT_TRUE(resumed.on_inner_step().ok());
      EXPECT_EQ(all_due(resumed), all_due(whole));
    }
    EXPECT_EQ(resumed.state(), whole.state());
  }
}

TEST(Co2Engine, RefusesAStateThatCannotBe) {
  Engine engine(options(OuterRule::co2, 3), 2, 2, 1);
  for (const EngineState& state :
       {EngineState{.step = 3, .phase = 1}, EngineState{.round = -1, .phase = 1}, EngineState{.phase = 7},
        EngineState{.round = 0, .has_pending = 1, .phase = 1}, EngineState{.round = 4, .has_pending = 2, .phase = 1}})
    EXPECT_EQ(engine.load(state).code(), Errc::corrupt);
  Engine blocking(options(OuterRule::diloco, 3), 2, 2, 1);
  EXPECT_EQ(blocking.load({.round = 4, .has_pending = 1, .phase = 1}).code(), Errc::corrupt);
}

}  // namespace
}  // namespace overlace::train
