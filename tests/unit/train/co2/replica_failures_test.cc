// What a replica leaves behind when something failed on its way: memory, deadlines, statistics, the timeline.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "src/train/co2/deadline.h"
#include "src/train/co2/options.h"
#include "src/train/co2/replica.h"
#include "tests/unit/train/co2/toy.h"

namespace overlace::train {
namespace {

using test::run_members;
using test::small;
using test::Toy;

/// One rank, whose sums are what they were, until a wait is told to end without one. Cannot be told of a failure: it
/// may write into the memory of a ticket for ever.
class Forgetful : public AsyncCollective {
 public:
  std::string name() const override { return "forgetful"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  CollectiveCaps caps() const override { return {}; }
  Ticket all_reduce(const Bucket& bucket, StreamRef) override {
    open_.push_back(bucket);
    return {open_.size()};
  }
  TicketState poll(Ticket) override { return TicketState::pending; }
  void order_after(Ticket ticket, StreamRef) override { wait(ticket, 1); }
  void wait(Ticket ticket, int64_t timeout_ms) override {
    last_timeout_ms = timeout_ms;
    if (++waits <= good_waits) {
      open_[ticket.number - 1].count = 0;
      return;
    }
    waited_ms += timeout_ms;
    throw_error(Errc::timeout, "forgetful: nothing came");
  }
  TicketTimes times(Ticket) override { return {}; }
  void abort(Errc, std::string_view) override { ++aborts; }
  /// What a transport that is late does.
  void write_everywhere() {
    for (const Bucket& bucket : open_)
      if (bucket.count > 0) std::memset(bucket.data, 0x55, bucket.count * dtype_bytes(bucket.dtype));
  }

  int good_waits = 0, waits = 0, aborts = 0;
  int64_t waited_ms = 0, last_timeout_ms = 0;

 private:
  std::vector<Bucket> open_;
};

TEST(Co2ReplicaFailure, AStartThatFailsLeavesItsMemoryToTheTransport) {
  for (const int good : {0, 1}) {  // the options' all-reduce, the parameters'
    Forgetful outer;
    outer.good_waits = good;
    Toy toy(0);
    EXPECT_THROW(Replica(small(Co2Options::stable(1)), toy.parameters(), outer), Timeout);
    outer.write_everywhere();
  }
}

TEST(Co2ReplicaFailure, ADeadlineThatIsOverIsNotWaitedForAgain) {
  Forgetful outer;
  outer.good_waits = 2;
  {
    Toy toy(0);
    Replica replica(small(Co2Options::stable(1)), toy.parameters(), outer);
    toy.step();
    replica.on_inner_step(0.1);
    toy.step();
    EXPECT_THROW(replica.on_inner_step(0.1), Timeout);
    EXPECT_EQ(outer.waited_ms, 20000);
    EXPECT_THROW(replica.on_inner_step(0.1), InvalidArgument);  // a boundary is half done
    EXPECT_THROW((void)replica.save(), InvalidArgument);
  }
  EXPECT_EQ(outer.aborts, 1);
  EXPECT_LE(outer.waited_ms, 20001);  // its end does not have a deadline more for each ticket
  outer.write_everywhere();
}

/// One rank, whose launches and waits fail from one of them on.
class FailsFrom : public AsyncCollective {
 public:
  explicit FailsFrom(int call) : call_(call) {}
  std::string name() const override { return "fails_from"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  CollectiveCaps caps() const override { return {.frees_on_failure = true}; }
  Ticket all_reduce(const Bucket&, StreamRef) override {
    count();
    return {++launched_};
  }
  TicketState poll(Ticket) override { return TicketState::complete; }
  void order_after(Ticket ticket, StreamRef) override { wait(ticket, 1); }
  void wait(Ticket, int64_t) override { count(); }
  TicketTimes times(Ticket) override { return {}; }
  void abort(Errc, std::string_view) override {}

 private:
  void count() {
    if (++calls_ >= call_) throw_error(Errc::peer_lost, base::format("call {} fails", call_));
  }
  const int call_;
  int calls_ = 0;
  uint64_t launched_ = 0;
};

/// Anchors of a run by the rounds that were taken in, the last one also of a run that failed; true if it did.
bool run_that_fails(OuterRule rule, int call, bool is_whole, std::vector<std::vector<float>>& anchors) {
  FailsFrom outer(call);
  Toy toy(0);
  ReplicaOptions options = small({.rule = rule, .tau = 4, .outer_momentum = rule == OuterRule::co2 ? 0.2 : -1});
  options.is_boundary_whole = is_whole;
  Replica replica(options, toy.parameters(), outer);
  const auto note = [&] {
    anchors.resize(static_cast<size_t>(replica.rounds_taken_in()) + 1);
    anchors.back().assign(replica.anchor().begin(), replica.anchor().end());
  };
  note();
  try {
    for (int i = 0; i < 16; ++i) {
      toy.step();
      replica.on_inner_step(0.1);
      note();
    }
    replica.flush();
  } catch (const PeerLost&) {
    note();
    EXPECT_THROW((void)replica.save(), Error) << "an increment that was not sent is no state to go on from";
    return true;
  }
  note();
  return false;
}

TEST(Co2ReplicaFailure, ABoundaryThatIsWholeLeavesTheAnchorOfBeforeOrAfter) {
  int torn = 0;
  for (const OuterRule rule : {OuterRule::co2, OuterRule::eager, OuterRule::streaming, OuterRule::local_sgd,
                               OuterRule::slow_mo, OuterRule::diloco})
    for (const bool is_whole : {true, false}) {
      std::vector<std::vector<float>> wanted;
      ASSERT_FALSE(run_that_fails(rule, 1 << 20, is_whole, wanted));
      int failed = 0;
      // Four of them compare the start.
      for (int call = 5;; ++call, ++failed) {
        std::vector<std::vector<float>> got;
        if (!run_that_fails(rule, call, is_whole, got)) break;
        std::vector<float>& same = wanted[got.size() - 1];
        if (same.empty()) same = got.back();  // of a flush that takes in two, only failures show the first
        const bool is_torn = got.back() != same;
        EXPECT_FALSE(is_whole && is_torn) << kOuterRuleNames[static_cast<int>(rule)] << " at call " << call;
        torn += is_torn ? 1 : 0;
      }
      EXPECT_GT(failed, 16) << kOuterRuleNames[static_cast<int>(rule)];
    }
  EXPECT_GT(torn, 0) << "what the test would find";
}

TEST(Co2Deadline, FollowsWhatRoundsWereWaitedForByHand) {
  ArrivalDeadline deadline(300000);
  for (int i = 0; i < 15; ++i) deadline.add(i % 2 == 0 ? 20000 : 21000);
  EXPECT_EQ(deadline.ms(), 300000);  // not yet sixteen
  deadline.add(21000);
  EXPECT_EQ(deadline.ms(), 20500 + 10 * 500);
  deadline.add(200000);  // one that was late moves it little: the oldest 20000 goes
  EXPECT_EQ(deadline.ms(), 21000 + 10 * 500);
  for (int i = 0; i < 16; ++i) deadline.add(0.5);
  EXPECT_EQ(deadline.ms(), ArrivalDeadline::kLeastMs);
  for (int i = 0; i < 16; ++i) deadline.add(1e9 * i);
  EXPECT_EQ(deadline.ms(), 300000);
  ArrivalDeadline strict(3000);  // never more than was asked for
  for (int i = 0; i < 16; ++i) strict.add(1);
  EXPECT_EQ(strict.ms(), 3000);
}

TEST(Co2Deadline, IsThatOfTheWaitsOfARun) {
  for (const bool is_auto : {false, true}) {
    Forgetful outer;
    outer.good_waits = 1000;
    Toy toy(0);
    ReplicaOptions options = small(Co2Options::stable(1));
    options.is_deadline_auto = is_auto;
    Replica replica(options, toy.parameters(), outer);
    EXPECT_EQ(outer.last_timeout_ms, 20000);
    const auto rounds = [&](int count) {
      for (int i = 0; i < count; ++i) {
        toy.step();
        replica.on_inner_step(0.1);
      }
    };
    rounds(17);  // sixteen of them came in
    EXPECT_EQ(outer.last_timeout_ms, 20000);
    rounds(1);
    EXPECT_EQ(outer.last_timeout_ms, is_auto ? 10000 : 20000);
    replica.flush();
  }
}

/// Sees the sum of one ticket late: an abort that comes before is the error of its wait.
class LateToSee : public AsyncCollective {
 public:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_aborted = false;
  };
  LateToSee(AsyncCollective& inner, Shared& shared, std::string what)
      : inner_(inner), shared_(shared), what_(std::move(what)) {}
  std::string name() const override { return inner_.name(); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  CollectiveCaps caps() const override { return inner_.caps(); }
  Ticket all_reduce(const Bucket& bucket, StreamRef stream) override {
    const Ticket ticket = inner_.all_reduce(bucket, stream);
    if (bucket.what == what_) late_ = ticket.number;
    return ticket;
  }
  TicketState poll(Ticket ticket) override { return inner_.poll(ticket); }
  void order_after(Ticket ticket, StreamRef stream) override { inner_.order_after(ticket, stream); }
  void wait(Ticket ticket, int64_t timeout_ms) override {
    if (ticket.number == late_) {
      std::unique_lock lock(shared_.mutex);
      if (shared_.changed.wait_for(lock, std::chrono::milliseconds(300), [&] { return shared_.is_aborted; }))
        throw_error(Errc::aborted, "the other group has left");
    }
    inner_.wait(ticket, timeout_ms);
  }
  TicketTimes times(Ticket ticket) override { return inner_.times(ticket); }
  void abort(Errc code, std::string_view why) override {
    {
      const std::lock_guard lock(shared_.mutex);
      shared_.is_aborted = true;
    }
    shared_.changed.notify_all();
    inner_.abort(code, why);
  }

 private:
  AsyncCollective& inner_;
  Shared& shared_;
  const std::string what_;
  uint64_t late_ = 0;
};

TEST(Co2ReplicaFailure, NoGroupLeavesByBadValuesBeforeTheOthersHaveSeenThem) {
  LateToSee::Shared shared;
  std::atomic<int> told = 0;
  run_members(2, 0, [&](AsyncCollective& inner) {
    // Increments of rounds 3, 4 and 5 are bad; what says so of the last is late at group 1.
    LateToSee outer(inner, shared, inner.rank() == 1 ? "round 5, header" : "");
    Toy toy(outer.rank());
    Replica replica(small(Co2Options::stable(1)), toy.parameters(), outer);
    try {
      for (int i = 0; i < 9; ++i) {
        toy.step();
        if (i >= 3 && outer.rank() == 0) toy.values()[0][1] = std::numeric_limits<float>::infinity();
        replica.on_inner_step(0.1);
      }
    } catch (const NonFinite&) {
      ++told;
    }
  });
  EXPECT_EQ(told, 2);
}

TEST(Co2ReplicaFailure, RoundsAfterAFlushThatFoundBadValuesAreInTheTimeline) {
  run_members(1, 0, [](AsyncCollective& outer) {
    Toy toy(0);
    Replica replica(small(Co2Options::stable(1)), toy.parameters(), outer);
    for (int i = 0; i < 3; ++i) {
      toy.values()[0][2] = std::numeric_limits<float>::quiet_NaN();
      replica.on_inner_step(0.1);
    }
    EXPECT_THROW(replica.flush(), NonFinite);
    const auto count_steps = [&] {
      const base::Trace trace = replica.trace();
      return std::count_if(trace.spans.begin(), trace.spans.end(),
                           [](const base::Span& span) { return span.name == "steps"; });
    };
    const auto before = count_steps();
    // Whatever was bad is gone: training goes on from the last good anchor.
    for (const float value : toy.flat()) ASSERT_TRUE(std::isfinite(value));
    for (int i = 0; i < 2; ++i) {
      toy.step();
      replica.on_inner_step(0.1);
    }
    EXPECT_EQ(count_steps(), before + 2);
    replica.flush();
    EXPECT_FALSE(replica.stats().back().is_dropped);
  });
}

TEST(Co2ReplicaFailure, GoesOnFromEveryStepOfARunWithWarmUpAndCoolDown) {
  constexpr int kSteps = 12;
  const Co2Options co2{
      .rule = OuterRule::co2, .tau = 3, .warmup_sync_steps = 2, .cooldown_sync_steps = 2, .total_steps = kSteps};
  int averaged = 0;
  ReplicaOptions options = small(co2);
  options.average_inner = [&averaged] { ++averaged; };
  const auto run = [&](int first, int last, std::string& state, bool is_saved) {
    std::vector<float> end;
    run_members(1, 3, [&](AsyncCollective& outer) {
      Toy toy(0);
      Replica replica(options, toy.parameters(), outer);
      if (first > 0) replica.load(state).or_throw();
      for (int i = first; i < last; ++i) {
        EXPECT_EQ(replica.wants_gradient_mean(), i < 2 || i >= 10) << i;
        toy.step();
        replica.on_inner_step(0.1);
      }
      if (is_saved)
        state = replica.save();
      else
        replica.flush();
      end = toy.flat();
    });
    return end;
  };
  std::string state;
  const std::vector<float> wanted = run(0, kSteps, state, false);
  EXPECT_EQ(averaged, 1);
  for (int stop = 1; stop < kSteps; ++stop) {
    (void)run(0, stop, state, true);
    const int before = averaged;
    ASSERT_EQ(run(stop, kSteps, state, false), wanted) << "stopped after step " << stop;
    EXPECT_EQ(averaged - before, stop < 10 ? 1 : 0) << "stopped after step " << stop;
  }
}

TEST(Co2ReplicaFailure, StatisticsAfterALoadAreOfTheRoundsThatFollow) {
  run_members(1, 0, [](AsyncCollective& outer) {
    Toy toy(0);
    Replica replica(small(Co2Options::stable(2)), toy.parameters(), outer);
    const auto steps = [&](int count) {
      for (int i = 0; i < count; ++i) {
        toy.step();
        replica.on_inner_step(0.1);
      }
    };
    const std::string saved = replica.save();
    steps(2);  // the passes of a first boundary, whose statistics come with the next one
    replica.load(saved).or_throw();
    steps(2);
    (void)replica.save();  // waits for the exchange outside a boundary
    replica.load(saved).or_throw();
    steps(4);
    ASSERT_EQ(replica.stats().size(), 1u);
    EXPECT_EQ(replica.stats().back().round, 0);
    EXPECT_EQ(replica.stats().back().bytes, static_cast<int64_t>(toy.flat().size() * sizeof(float)));
  });
}

}  // namespace
}  // namespace overlace::train
