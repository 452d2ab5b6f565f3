// All-reduces behind the caller's back: sums, failures and their texts, slow and bad links; CO2 over them.
#include "overlace/async_collective.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "src/runtime/clock.h"
#include "src/runtime/hash.h"
#include "src/train/co2/replica.h"
#include "tests/ranks/support/faults.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

HostCollectiveOptions host_options(Mode mode, int64_t timeout_ms = 20000) {
  RankOptions ranks;
  ranks.heap_bytes = size_t{2} << 20;
  ranks.timeout_ms = timeout_ms;
  HostCollectiveOptions options;
  options.runtime = runtime_options(mode, ranks);
  return options;
}

using Body = std::function<void(AsyncCollective&)>;

void run_host(int n, Mode mode, const Body& body, int64_t timeout_ms = 20000) {
  run_bootstraps(n, mode, [&](Bootstrap& bootstrap) {
    const auto collective = open_host_collective(bootstrap, host_options(mode, timeout_ms));
    body(*collective);
  });
}

float value_of(int rank, int bucket, size_t i) {
  return static_cast<float>((rank * 31 + bucket * 7 + static_cast<int>(i % 1000)) % 97 - 48);
}

class AsyncCollectiveTest : public testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(AsyncCollectiveTest, SumsWhatWasLaunchedInAnyOrderOfWaits) {
  const auto [n, mode] = GetParam();
  run_host(n, mode, [n = n](AsyncCollective& collective) {
    EXPECT_EQ(collective.size(), n);
    std::vector<std::vector<float>> buckets;
    std::vector<Ticket> tickets;
    const size_t counts[] = {1, 0, 70001, 5, 4096, 3};
    for (const size_t count : counts) {
      const int bucket = static_cast<int>(buckets.size());
      buckets.emplace_back(count);
      for (size_t i = 0; i < count; ++i) buckets.back()[i] = value_of(collective.rank(), bucket, i);
    }
    for (std::vector<float>& bucket : buckets)
      tickets.push_back(collective.all_reduce({bucket.data(), bucket.size(), DType::fp32, "a bucket"}, {}));
    std::vector<double> header = {1.0, 0.1 * collective.rank()};
    const Ticket last = collective.all_reduce({header.data(), header.size(), DType::fp64, "a header"}, {});
    collective.wait(last, 20000);
    EXPECT_EQ(header[0], n);
    for (int b = 5; b >= 0; --b) {  // not the order of the launches
      collective.wait(tickets[static_cast<size_t>(b)], 20000);
      EXPECT_EQ(collective.poll(tickets[static_cast<size_t>(b)]), TicketState::complete);
      for (size_t i = 0; i < buckets[static_cast<size_t>(b)].size(); ++i) {
        float sum = 0;
        for (int r = 0; r < n; ++r) sum += value_of(r, b, i);
        ASSERT_EQ(buckets[static_cast<size_t>(b)][i], sum) << "bucket " << b << " element " << i;
      }
    }
  });
}

TEST_P(AsyncCollectiveTest, GoesOnWhileNobodyWaits) {
  const auto [n, mode] = GetParam();
  run_host(n, mode, [](AsyncCollective& collective) {
    EXPECT_TRUE(collective.caps().progresses_alone);
    std::vector<float> bucket(100000, 1.0f);
    const Ticket ticket = collective.all_reduce({bucket.data(), bucket.size(), DType::fp32, "a bucket"}, {});
    const int64_t deadline = runtime::now_ns() + 20'000'000'000;
    while (collective.poll(ticket) == TicketState::pending && runtime::now_ns() < deadline) std::this_thread::yield();
    EXPECT_EQ(collective.poll(ticket), TicketState::complete);
    const TicketTimes times = collective.times(ticket);
    EXPECT_LE(times.launched_ns, times.begun_ns);
    EXPECT_LE(times.begun_ns, times.met_ns);
    EXPECT_LE(times.met_ns, times.complete_ns);
    EXPECT_NE(times.last_rank, collective.rank());
    EXPECT_EQ(bucket[99999], static_cast<float>(collective.size()));
  });
}

/// Steps on a quadratic whose minimum differs by group and place; the parameters in the end.
std::vector<float> train(AsyncCollective& outer, Co2Options co2, int steps, int64_t timeout_ms = 20000,
                         const std::function<void(int)>& before_step = {}) {
  std::vector<float> first(1000), second(77, 2.0f);
  const auto step = [&](std::vector<float>& x) {
    for (size_t i = 0; i < x.size(); ++i)
      x[i] -= 0.1f * (x[i] - 0.3f * static_cast<float>(outer.rank()) - 0.01f * static_cast<float>(i % 13));
  };
  train::ReplicaOptions options;
  options.co2 = co2;
  options.bucket_bytes = 4000;
  options.timeout_ms = timeout_ms;
  options.threads = 1;
  train::Replica replica(
      options,
      {{.name = "first", .data = first.data(), .count = 1000}, {.name = "second", .data = second.data(), .count = 77}},
      outer);
  for (int i = 0; i < steps; ++i) {
    if (before_step) before_step(i);
    step(first);
    step(second);
    replica.on_inner_step(0.1);
  }
  replica.flush();
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// FNV-1a, so that processes can compare.
double hash_of(const std::vector<float>& values) {
  return static_cast<double>(
      runtime::hash_text({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}) >> 12);
}

TEST_P(AsyncCollectiveTest, TrainsWithEveryRuleToTheSameBitsOnAllGroups) {
  const auto [n, mode] = GetParam();
  for (const OuterRule rule : {OuterRule::co2, OuterRule::eager, OuterRule::streaming, OuterRule::local_sgd,
                               OuterRule::slow_mo, OuterRule::diloco}) {
    Co2Options co2{.rule = rule, .tau = 3};
    co2.check_every = 1;
    const int steps = rule == OuterRule::co2 ? 100 : 14;
    // Threads without an adversary, for comparison.
    std::vector<float> wanted;
    if (mode != Mode::processes)
      run_host(n, Mode::threads, [&](AsyncCollective& outer) {
        const std::vector<float> got = train(outer, co2, steps);
        if (outer.rank() == 0) wanted = got;
      });
    run_host(n, mode, [&, n = n](AsyncCollective& outer) {
      const std::vector<float> got = train(outer, co2, steps);
      if (!wanted.empty()) {
        EXPECT_EQ(got, wanted);
      }
      double sum = hash_of(got);
      const double own = sum;
      outer.wait(outer.all_reduce({&sum, 1, DType::fp64, "hash"}, {}), 20000);
      EXPECT_NEAR(sum, own * n, std::abs(sum) * 1e-12);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, AsyncCollectiveTest,
                         testing::Combine(testing::Values(2, 3, 4), testing::ValuesIn(all_modes())), mode_test_name);

/// The text of what `call` throws, with its code in front.
std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(errc_name(error.code())) + ": " + error.what();
  }
  return "nothing was thrown";
}

TEST(AsyncCollectiveFault, AWaitThatEndsNamesTicketAndWhoIsMissing) {
  std::atomic<int> told{0}, timed_out{0};
  run_bootstraps(3, Mode::threads, [&](Bootstrap& bootstrap) {
    const auto collective = open_host_collective(bootstrap, host_options(Mode::threads));
    std::vector<float> bucket(16, 1.0f);
    const auto launch = [&](const char* what) {
      return collective->all_reduce({bucket.data(), 16, DType::fp32, what}, {});
    };
    // Whoever gives up first says timeout, the others that they were aborted by it, with its text.
    const auto expect_cause = [](const std::string& text) {
      EXPECT_TRUE(text.find("timeout: ") == 0 || text.find("aborted: ") == 0) << text;
      EXPECT_NE(text.find("all-reduce of round 4, bucket 1: rank "), std::string::npos) << text;
      EXPECT_NE(text.find(" of 3 waited 300 ms for 64 bytes; before it is round 4, bucket 0; not seen: rank 1"),
                std::string::npos)
          << text;
    };
    if (bootstrap.rank() == 1) {  // comes too late: when the others have given up
      while (told < 2) std::this_thread::yield();
      expect_cause(thrown_by([&] { collective->wait(launch("round 4, bucket 0"), 20000); }));
      return;
    }
    const Ticket first = launch("round 4, bucket 0"), second = launch("round 4, bucket 1");
    const int64_t begin_ns = runtime::now_ns();
    const std::string text = thrown_by([&] { collective->wait(second, 300); });
    EXPECT_LT(runtime::now_ns() - begin_ns, 10'000'000'000);
    expect_cause(text);
    timed_out += text.find("timeout: ") == 0 ? 1 : 0;
    EXPECT_EQ(collective->poll(first), TicketState::failed);
    EXPECT_EQ(collective->poll(second), TicketState::failed);
    EXPECT_EQ(thrown_by([&] { collective->wait(first, 20000); }), text);
    EXPECT_EQ(thrown_by([&] { (void)launch("more"); }), text);
    ++told;
  });
  EXPECT_GE(timed_out, 1);
}

TEST(AsyncCollectiveFault, RanksAtDifferentAllReducesAreToldBoth) {
  const auto run = [](size_t count_of_rank_1, DType dtype, const char* what, const char* wanted) {
    std::atomic<int> told{0};
    run_host(3, Mode::threads, [&](AsyncCollective& collective) {
      std::vector<double> bucket(100, 1.0);
      const bool is_other = collective.rank() == 1;
      collective.wait(collective.all_reduce({bucket.data(), 20, DType::fp32, "round 6, bucket 0"}, {}), 20000);
      const std::string text = thrown_by([&] {
        collective.wait(collective.all_reduce({bucket.data(), is_other ? count_of_rank_1 : 20,
                                               is_other ? dtype : DType::fp32, is_other ? what : "round 7, bucket 2"},
                                              {}),
                        20000);
      });
      // Whoever saw it first aborts the others with its text.
      EXPECT_NE(text.find("all-reduce of round 7, bucket "), std::string::npos) << text;
      EXPECT_TRUE(text.find("desync: ") == 0 || text.find("aborted: ") == 0) << text;
      EXPECT_NE(text.find("\"round 7, bucket 2\" of 20 x fp32"), std::string::npos) << text;
      EXPECT_NE(text.find(wanted), std::string::npos) << text;
      ++told;
    });
    EXPECT_EQ(told, 3);
  };
  run(80, DType::fp32, "round 7, bucket 2", "\"round 7, bucket 2\" of 80 x fp32");
  run(10, DType::fp64, "round 7, bucket 2", "of 10 x fp64");
  run(20, DType::fp32, "round 7, bucket 1", "\"round 7, bucket 1\" of 20 x fp32");
}

TEST(AsyncCollectiveFault, AnAbortEndsWaitsOfAllRanks) {
  run_bootstraps(2, Mode::threads, [&](Bootstrap& bootstrap) {
    const std::string text = thrown_by([&] {  // the other may be aborted while it opens
      const auto collective = open_host_collective(bootstrap, host_options(Mode::threads));
      std::vector<float> bucket(16, 1.0f);
      if (bootstrap.rank() == 0) collective->abort(Errc::aborted, "somebody pulled the plug");
      collective->wait(collective->all_reduce({bucket.data(), 16, DType::fp32, "round 1, bucket 0"}, {}), 20000);
    });
    EXPECT_NE(text.find("somebody pulled the plug"), std::string::npos) << text;
  });
}

TEST(AsyncCollectiveFault, RanksMayBeFurtherApartThanDataMayBeLate) {
  const auto train_apart = [](int64_t meet_timeout_ms) {
    std::atomic<int> failed{0};
    run_bootstraps(2, Mode::threads, [&](Bootstrap& bootstrap) {
      HostCollectiveOptions options = host_options(Mode::threads, 1000);
      options.meet_timeout_ms = meet_timeout_ms;
      const std::string text = thrown_by([&] {
        const auto collective = open_host_collective(bootstrap, options);
        float x = 1;
        if (bootstrap.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
        collective->wait(collective->all_reduce({&x, 1, DType::fp32, "x"}, {}), 20000);
        EXPECT_EQ(x, 2);
      });
      if (text == "nothing was thrown") return;
      ++failed;
      EXPECT_NE(text.find("rank 0 waited for rank 1, team"), std::string::npos) << text;
    });
    return failed.load();
  };
  EXPECT_EQ(train_apart(20000), 0);
  EXPECT_EQ(train_apart(0), 2);
}

/// Opens what a rank of a collective opens and is silent then, until `has_seen`.
void stay_silent(Bootstrap& bootstrap, const std::atomic<bool>& has_seen) {
  Runtime runtime = Runtime::open(bootstrap, host_options(Mode::threads).runtime);
  (void)runtime.world().channel(StreamRef::cpu()).ids(1, Domain::cpu, "async_collective.came");
  (void)runtime.heap().alloc(2 * 2 * 64, 64, "async_collective.said");
  runtime.world().barrier();
  while (!has_seen) std::this_thread::yield();
}

TEST(AsyncCollectiveFault, AWaitNamesWhoGivesNoSignOfLife) {
  std::atomic<bool> has_seen{false};
  run_bootstraps(2, Mode::threads, [&](Bootstrap& bootstrap) {
    if (bootstrap.rank() == 1) return stay_silent(bootstrap, has_seen);
    const auto collective = open_host_collective(bootstrap, host_options(Mode::threads));
    float x = 1;
    EXPECT_EQ(thrown_by([&] {
                collective->wait(collective->all_reduce({&x, 1, DType::fp32, "x"}, {}), 50);
              }),
              "timeout: all-reduce of x: rank 0 of 2 waited 50 ms for 4 bytes; no sign of life: rank 1");
    has_seen = true;
  });
}

TEST(AsyncCollectiveFault, RefusesStreamsOfGpus) {
  run_host(1, Mode::threads, [](AsyncCollective& collective) {
    float x = 1;
    const StreamRef stream = StreamRef::cuda(nullptr);
    EXPECT_THROW((void)collective.all_reduce({&x, 1, DType::fp32, "x"}, stream), Unsupported);
    EXPECT_THROW(collective.order_after({1}, stream), Unsupported);
    const Ticket ticket = collective.all_reduce({&x, 1, DType::fp32, "x"}, StreamRef::cpu());
    collective.order_after(ticket, StreamRef::cpu());
    EXPECT_EQ(x, 1);
    const Ticket next = collective.all_reduce({&x, 1, DType::fp32, "x"}, StreamRef::cpu());
    EXPECT_GT(collective.times(ticket).complete_ns, 0) << "is known when more was launched";
    collective.wait(next, 20000);
  });
}

TEST(AsyncCollectiveFault, ARankThatFailsAtOpeningFailsAll) {
  run_bootstraps(2, Mode::threads, [&](Bootstrap& bootstrap) {
    HostCollectiveOptions options = host_options(Mode::threads, 3000);
    if (bootstrap.rank() == 1) options.runtime.heap_bytes *= 2;
    EXPECT_THROW((void)open_host_collective(bootstrap, options), InvalidArgument);
  });
}

/// Whoever has seen it leaves, which must not be what the others see.
TEST(AsyncCollectiveFault, ARefusalAtTheStartIsSaidByAllRanks) {
  std::atomic<int> told{0};
  constexpr int kTimes = 30;
  for (int time = 0; time < kTimes; ++time)
    run_bootstraps(4, Mode::threads, [&](Bootstrap& bootstrap) {
      const std::string text = thrown_by([&] {
        const auto outer = open_host_collective(bootstrap, host_options(Mode::threads));
        train(*outer, {.tau = outer->rank() == 2 ? 3 : 2}, 1);
      });
      EXPECT_EQ(text.find("plan_mismatch: options and parameters' shapes differ"), 0u) << text;
      ++told;
    });
  EXPECT_EQ(told, 4 * kTimes);
}

/// Ranks of processes of which one fails in the middle of training.
class AsyncCollectiveLost : public testing::TestWithParam<std::tuple<Fault, int>> {};

TEST_P(AsyncCollectiveLost, IsNamedToAllOthersInTime) {
  if (!kHasProcesses) GTEST_SKIP() << "ranks are threads under this sanitizer";
  const auto [fault, step] = GetParam();
  const int64_t deadline_ms = short_deadline_ms();
  constexpr int kCulprit = 1;
  const auto rank = [&, fault = fault, step = step](const std::unique_ptr<Bootstrap>& bootstrap,
                                                    const std::function<void()>& happen) {
    const auto collective = open_host_collective(*bootstrap, host_options(Mode::processes, 2 * deadline_ms));
    train(*collective, {.tau = 2}, 12, deadline_ms, [&](int i) {
      if (i != step || bootstrap->rank() != kCulprit) return;
      // In the middle of an exchange all have met already, and a stopped rank looks like those that wait for it.
      if (fault == Fault::stop) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      happen();
    });
  };
  const auto survivors = run_with_fault(3, kCulprit, fault, rank);
  // A stopped rank is waited for to the deadline of the wait; who has died is known at once.
  expect_told(survivors, kCulprit, allowed_seconds(fault, 2 * deadline_ms),
              {Errc::timeout, Errc::peer_lost, Errc::aborted}, fault_name(fault));
}

std::string name_of(const testing::TestParamInfo<std::tuple<Fault, int>>& info) {
  return std::string(fault_name(std::get<0>(info.param))) + "_before_step_" + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Steps, AsyncCollectiveLost,
                         testing::Combine(testing::Values(Fault::kill, Fault::exit, Fault::stop, Fault::fail),
                                          testing::Values(0, 3, 6)),
                         name_of);

/// Lets `happen` at the n-th of its launches and waits.
class FailsAt : public AsyncCollective {
 public:
  FailsAt(AsyncCollective& inner, int call, const std::function<void()>& happen)
      : inner_(inner), call_(call), happen_(happen) {}
  std::string name() const override { return inner_.name(); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  /// Not what the inner one says: a wait that fails here leaves its ticket on its way.
  CollectiveCaps caps() const override {
    CollectiveCaps caps = inner_.caps();
    caps.frees_on_failure = false;
    return caps;
  }
  Ticket all_reduce(const Bucket& bucket, StreamRef stream) override {
    count();
    return inner_.all_reduce(bucket, stream);
  }
  TicketState poll(Ticket ticket) override { return inner_.poll(ticket); }
  void order_after(Ticket ticket, StreamRef stream) override { inner_.order_after(ticket, stream); }
  void wait(Ticket ticket, int64_t timeout_ms) override {
    count();
    inner_.wait(ticket, timeout_ms);
  }
  TicketTimes times(Ticket ticket) override { return inner_.times(ticket); }
  void abort(Errc code, std::string_view why) override { inner_.abort(code, why); }
  int calls() const { return calls_; }

 private:
  void count() {
    if (++calls_ == call_) happen_();
  }
  AsyncCollective& inner_;
  const int call_;
  const std::function<void()>& happen_;
  int calls_ = 0;
};

// Start: 2 launches and waits; round 0: 3 launches; round 1 and 2: 3 waits, 3 launches; flush: 3 waits.
constexpr int kCallsOfThreeRounds = 4 + 3 + 2 * 6 + 3;

TEST(AsyncCollectiveLostAt, CallsOfThreeRoundsAreCountedRight) {
  run_host(2, Mode::threads, [](AsyncCollective& inner) {
    const std::function<void()> nothing = [] {};
    FailsAt outer(inner, 0, nothing);
    train(outer, {.tau = 2}, 6);
    EXPECT_EQ(outer.calls(), kCallsOfThreeRounds);
  });
}

TEST(AsyncCollectiveLostAt, EveryLaunchAndWaitIsNamedToAllOthers) {
  if (!kHasProcesses) GTEST_SKIP() << "ranks are threads under this sanitizer";
  constexpr int kCulprit = 2;
  constexpr Fault kFaults[] = {Fault::kill, Fault::exit, Fault::fail};
  for (int call = 1; call <= kCallsOfThreeRounds; ++call) {
    const Fault fault = kFaults[call % 3];
    const auto rank = [&](const std::unique_ptr<Bootstrap>& bootstrap, const std::function<void()>& happen) {
      const auto inner = open_host_collective(*bootstrap, host_options(Mode::processes));
      FailsAt outer(*inner, bootstrap->rank() == kCulprit ? call : 0, happen);
      train(outer, {.tau = 2}, 6);
    };
    const auto survivors = run_with_fault(3, kCulprit, fault, rank);
    // The last wait of a rank may be over when the culprit dies in its own: then nothing is missing.
    const bool may_be_through = call > kCallsOfThreeRounds - 3;
    std::vector<Errc> codes = {Errc::timeout, Errc::peer_lost, Errc::aborted};
    std::vector<Survivor> told;
    for (const Survivor& s : survivors)
      if (!may_be_through || s.code != Errc::ok) told.push_back(s);
    expect_told(told, kCulprit, allowed_seconds(fault, 20000), codes,
                base::format("{} at call {}", fault_name(fault), call));
  }
}

/// A rank that stops while an exchange is on its way. Its own waits look as those of the others; only that it says
/// nothing any more tells it apart from who waits for it through others.
class AsyncCollectiveStopped : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(AsyncCollectiveStopped, WithinAnExchangeIsNamedToAllOthers) {
  if (!kHasProcesses) GTEST_SKIP() << "ranks are threads under this sanitizer";
  const auto [culprit, after_ms] = GetParam();
  const int64_t deadline_ms = short_deadline_ms();
  const auto rank = [&, culprit = culprit, after_ms = after_ms](const std::unique_ptr<Bootstrap>& bootstrap,
                                                                const std::function<void()>& happen) {
    // A quarter of 4 MB through each link of 3 MB/s, to be summed and to be spread: about 350 ms each.
    HostCollectiveOptions options = host_options(Mode::processes, deadline_ms);
    options.runtime.link = LinkOptions::parse("3MB/s,50us");
    options.meet_timeout_ms = 20000;
    const auto collective = open_host_collective(*bootstrap, options);
    std::vector<float> bucket(1 << 20, 1.0f);
    const Ticket ticket = collective->all_reduce({bucket.data(), bucket.size(), DType::fp32, "round 4, bucket 0"}, {});
    if (bootstrap->rank() == culprit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(after_ms));
      EXPECT_EQ(collective->poll(ticket), TicketState::pending);
      happen();
    }
    // One rank's wait and the others' workers come to their deadlines.
    collective->wait(ticket, bootstrap->rank() == (culprit + 1) % 4 ? 2 * deadline_ms : 10000);
  };
  const auto survivors = run_with_fault(4, culprit, Fault::stop, rank);
  expect_told(survivors, culprit, allowed_seconds(Fault::stop, 2 * deadline_ms) + 1, {Errc::timeout, Errc::aborted},
              "within an exchange");
  for (const Survivor& s : survivors)
    EXPECT_NE(s.text.find(base::format("no sign of life: rank {}", culprit)), std::string::npos) << s.text;
}

INSTANTIATE_TEST_SUITE_P(Within, AsyncCollectiveStopped,
                         testing::Values(std::tuple(1, 60), std::tuple(1, 280), std::tuple(3, 500)));

// ---- slow and bad links ----

TEST(AsyncCollectivePaced, TakesItsTimeOneTicketAfterTheOther) {
  run_host(2, Mode::threads, [](AsyncCollective& inner) {
    // 2 (n - 1) / n = 1: 100 KB at 1 MB/s and 20 ms latency are 120 ms each.
    const auto collective = paced_collective(inner, {.bytes_per_s = 1e6, .latency_s = 0.02});
    std::vector<float> first(25000, 1.0f), second(25000, 2.0f);
    const int64_t begin_ns = runtime::now_ns();
    const Ticket a = collective->all_reduce({first.data(), first.size(), DType::fp32, "first"}, {});
    const Ticket b = collective->all_reduce({second.data(), second.size(), DType::fp32, "second"}, {});
    EXPECT_EQ(collective->poll(b), TicketState::pending);
    collective->wait(b, 20000);
    EXPECT_GE(runtime::now_ns() - begin_ns, 240'000'000);
    collective->wait(a, 20000);
    EXPECT_GE(collective->times(a).complete_ns - begin_ns, 120'000'000);
    EXPECT_GE(collective->times(b).complete_ns - collective->times(a).complete_ns, 120'000'000);
    EXPECT_EQ(first[0], 2);
    EXPECT_EQ(second[24999], 4);
    EXPECT_EQ(collective->poll(a), TicketState::complete);
  });
}

TEST(AsyncCollectivePaced, IsNotThroughBeforeTheOthersHaveCome) {
  std::atomic<bool> has_looked{false};
  run_host(2, Mode::threads, [&](AsyncCollective& inner) {
    const auto collective = paced_collective(inner, {.bytes_per_s = 0, .latency_s = 0});
    float x = 1;
    while (inner.rank() == 1 && !has_looked) std::this_thread::yield();
    const Ticket ticket = collective->all_reduce({&x, 1, DType::fp32, "x"}, {});
    if (inner.rank() == 0) {
      EXPECT_EQ(collective->poll(ticket), TicketState::pending);
    }
    has_looked = true;
    collective->wait(ticket, 20000);
    EXPECT_EQ(x, 2);
  });
}

TEST(AsyncCollectivePaced, HasADeadlineToo) {
  run_host(2, Mode::threads, [](AsyncCollective& inner) {
    const auto collective = paced_collective(inner, {.bytes_per_s = 1, .latency_s = 0});
    std::vector<float> bucket(1000, 1.0f);
    const Ticket ticket = collective->all_reduce({bucket.data(), bucket.size(), DType::fp32, "slow"}, {});
    const std::string text = thrown_by([&] { collective->wait(ticket, 1000); });
    EXPECT_EQ(text.find("timeout: "), 0u) << text;
  });
}

TEST(AsyncCollectivePaced, RefusesANegativeRate) {
  run_host(1, Mode::threads, [](AsyncCollective& inner) {
    EXPECT_THROW((void)paced_collective(inner, {.bytes_per_s = -1}), InvalidArgument);
  });
}

TEST(AsyncCollectiveFaulty, DoesWhatItIsTold) {
  using Kind = CollectiveFault::Kind;
  run_host(2, Mode::threads, [](AsyncCollective& inner) {
    const auto collective = faulty_collective(
        inner, {{.kind = Kind::delay, .ticket = 1, .delay_ms = 150}, {.kind = Kind::flip, .ticket = 2, .bit = 0}});
    std::vector<int32_t> bucket(4, 8);
    const auto launch = [&] { return collective->all_reduce({bucket.data(), 4, DType::i32, "a bucket"}, {}); };
    const int64_t begin_ns = runtime::now_ns();
    collective->wait(launch(), 20000);
    EXPECT_GE(runtime::now_ns() - begin_ns, 150'000'000);
    EXPECT_EQ(bucket[0], 16);
    const Ticket flipped = launch();
    collective->wait(flipped, 20000);
    collective->wait(flipped, 20000);  // flipped once
    EXPECT_EQ(bucket[0], 33);
    EXPECT_EQ(bucket[1], 32);
  });
  run_host(2, Mode::threads, [](AsyncCollective& inner) {
    const auto collective = faulty_collective(inner, {{.kind = Kind::fail, .ticket = 1}});
    float x = 1;
    const Ticket ticket = collective->all_reduce({&x, 1, DType::fp32, "round 0, bucket 0"}, {});
    const std::string text = thrown_by([&] { collective->wait(ticket, 20000); });
    EXPECT_NE(text.find("round 0, bucket 0"), std::string::npos) << text;
    EXPECT_EQ(collective->poll(ticket), TicketState::failed);
  });
  run_host(2, Mode::threads, [](AsyncCollective& inner) {
    const auto collective = faulty_collective(inner, {{.kind = Kind::never, .ticket = 1}});
    float x = 1;
    const Ticket ticket = collective->all_reduce({&x, 1, DType::fp32, "round 0, bucket 0"}, {});
    EXPECT_EQ(thrown_by([&] { collective->wait(ticket, 1000); }).find("timeout: "), 0u);
    EXPECT_EQ(collective->poll(ticket), TicketState::pending);
  });
}

TEST(AsyncCollectiveFaulty, AFlippedBitOfAHeaderIsDesync) {
  std::atomic<int> told{0};
  run_host(2, Mode::threads, [&](AsyncCollective& inner) {
    // Tickets 1 and 2 compare the start; round 0: buckets 3 and 4, header 5. Bit 0 of word 1, the round.
    const auto collective =
        faulty_collective(inner, {{.kind = CollectiveFault::Kind::flip, .ticket = 5, .bit = 64 + 62}});
    const std::string text = thrown_by([&] { train(*collective, {.tau = 1}, 4); });
    EXPECT_EQ(text.find("desync: groups are out of step at round 0: round is 0 here"), 0u) << text;
    ++told;
  });
  EXPECT_EQ(told, 2);
}

TEST(AsyncCollectiveStats, SayWhatWasHidden) {
  run_host(2, Mode::threads, [](AsyncCollective& inner) {
    const auto paced = paced_collective(inner, {.bytes_per_s = 0, .latency_s = 0.1});
    const std::function<void()> nap = [] { std::this_thread::sleep_for(std::chrono::milliseconds(120)); };
    FailsAt outer(*paced, 6, nap);  // the header of round 0, when the 100 ms of its bucket are over
    std::vector<float> x(64, 1.0f);
    train::ReplicaOptions options;
    options.co2.tau = 2;
    train::Replica replica(options, {{.name = "x", .data = x.data(), .count = 64}}, outer);
    // A round of 600 ms hides two tickets of 100 ms, late ones too; those of next to nothing do not.
    for (int i = 0; i < 12; ++i) {
      if (i < 8) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      replica.on_inner_step(0.1);
    }
    replica.flush();
    const auto& stats = replica.stats();
    ASSERT_EQ(stats.size(), 6u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_GE(stats[i].comm_ms, i == 0 ? 220 : 200) << i;  // from the launch of the bucket, which the header follows
      EXPECT_LE(stats[i].exposed_ms, 100) << i;              // of 200, on a machine that has other things to do
      EXPECT_GE(stats[i].round_ms, 590) << i;
      EXPECT_EQ(stats[i].bytes, 64 * 4);
      EXPECT_EQ(stats[i].round, static_cast<int64_t>(i));
    }
    EXPECT_GE(stats[4].exposed_ms, 10);
  });
}

}  // namespace
}  // namespace overlace::test
