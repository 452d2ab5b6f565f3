// All-reduces that travel as int8: what comes out, what is left for the next one, and CO2 over them.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "overlace/async_collective.h"
#include "src/runtime/hash.h"
#include "src/train/co2/replica.h"
#include "tests/ranks/support/faults.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

using Body = std::function<void(AsyncCollective&)>;

void run_host(int n, Mode mode, const Body& body, const char* link = "none") {
  run_bootstraps(n, mode, [&](Bootstrap& bootstrap) {
    RankOptions ranks;
    ranks.heap_bytes = size_t{2} << 20;
    ranks.timeout_ms = 20000;
    HostCollectiveOptions options;
    options.runtime = runtime_options(mode, ranks);
    options.runtime.link = LinkOptions::parse(link);
    const auto collective = open_host_collective(bootstrap, options);
    body(*collective);
  });
}

/// Values of all ranks, in fp64 slots of their own.
std::vector<double> gathered(AsyncCollective& collective, double value) {
  std::vector<double> slots(static_cast<size_t>(collective.size()));
  slots[static_cast<size_t>(collective.rank())] = value;
  collective.wait(collective.all_reduce({slots.data(), slots.size(), DType::fp64, "slots"}, {}), 20000);
  return slots;
}

template <class T>
double hash_of(const std::vector<T>& values) {
  return static_cast<double>(
      runtime::hash_text({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}) >> 12);
}

/// A value of each rank and element, and one that is far larger in each third block.
double value_of(int rank, size_t i) {
  const double base = static_cast<double>((static_cast<size_t>(rank) * 7919 + i * 104729) % 2003) / 1001.5 - 1;
  return i / 256 % 3 == 1 ? base * 1000 : base;
}

class AsyncInt8 : public testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(AsyncInt8, SumAndResidualsKeepWhatWentIn) {
  const auto [n, mode] = GetParam();
  run_host(n, mode, [n = n](AsyncCollective& collective) {
    ASSERT_TRUE(collective.caps().takes_residuals);
    for (const size_t count : {size_t{0}, size_t{1}, size_t{5}, size_t{256}, size_t{70001}}) {
      std::vector<float> data(count), residual(count);
      for (size_t i = 0; i < count; ++i) {
        data[i] = static_cast<float>(value_of(collective.rank(), i));
        residual[i] = static_cast<float>(value_of(collective.rank() + 17, i) / 256);
      }
      const std::vector<float> before = data, kept = residual;
      collective.wait(collective.all_reduce({data.data(), count, DType::fp32, "a bucket", residual.data()}, {}), 20000);
      // Residuals of all ranks, summed in fp64 by a transport that rounds nothing.
      std::vector<double> left(residual.begin(), residual.end());
      collective.wait(collective.all_reduce({left.data(), count, DType::fp64, "residuals"}, {}), 20000);
      double rounded = 0;
      for (size_t i = 0; i < count; ++i) {
        double whole = 0, largest = 0;
        for (int r = 0; r < n; ++r) {
          const double sent = static_cast<double>(static_cast<float>(value_of(r, i))) +
                              static_cast<double>(static_cast<float>(value_of(r + 17, i) / 256));
          whole += sent;
          largest += 1001.0 * (i / 256 % 3 == 1 ? 1 : 0.001);
        }
        // Blocks begin anew in each rank's part, so the larger neighbours may be in the same one.
        EXPECT_NEAR(static_cast<double>(data[i]), whole, 1.01 * (2 * n - 1) * 1005 / 254) << i;
        ASSERT_NEAR(static_cast<double>(data[i]) + left[i], whole, largest * 4e-7 + 1e-5) << i << " of " << count;
        rounded = std::max(rounded, std::abs(static_cast<double>(data[i]) - whole));
      }
      if (count > 256) {
        EXPECT_GT(rounded, 0.1) << "nothing was rounded: it did not travel as int8";
      }
      for (const double other : gathered(collective, hash_of(data))) EXPECT_EQ(other, hash_of(data));
    }
  });
}

TEST_P(AsyncInt8, WhatWasLeftOutComesWithTheNextOnes) {
  const auto [n, mode] = GetParam();
  run_host(n, mode, [n = n](AsyncCollective& collective) {
    constexpr size_t kCount = 700;
    constexpr int kTimes = 40;
    std::vector<float> residual(kCount);
    std::vector<double> total(kCount);
    for (int t = 0; t < kTimes; ++t) {
      std::vector<float> data(kCount);
      for (size_t i = 0; i < kCount; ++i) data[i] = static_cast<float>(value_of(collective.rank(), i));
      collective.wait(collective.all_reduce({data.data(), kCount, DType::fp32, "a bucket", residual.data()}, {}),
                      20000);
      for (size_t i = 0; i < kCount; ++i) total[i] += static_cast<double>(data[i]);
    }
    // Without what was left out the error would grow with each time; so it stays that of one.
    for (size_t i = 0; i < kCount; ++i) {
      double whole = 0;
      for (int r = 0; r < n; ++r) whole += static_cast<double>(static_cast<float>(value_of(r, i)));
      EXPECT_NEAR(total[i] / kTimes, whole, 1.1 * (2 * n - 1) * 1005 / 254 / kTimes) << i;
    }
  });
}

TEST_P(AsyncInt8, AValueThatIsNotFiniteIsSoOnAllRanksAndGoneAfterwards) {
  const auto [n, mode] = GetParam();
  run_host(n, mode, [n = n](AsyncCollective& collective) {
    std::vector<float> residual(2000), data(2000, 1.0f);
    if (collective.rank() == n - 1) data[1500] = std::numeric_limits<float>::quiet_NaN();
    if (collective.rank() == 0) data[3] = std::numeric_limits<float>::infinity();
    const auto reduce = [&] {
      collective.wait(collective.all_reduce({data.data(), data.size(), DType::fp32, "a bucket", residual.data()}, {}),
                      20000);
    };
    reduce();
    EXPECT_TRUE(std::isnan(data[1500]));
    EXPECT_TRUE(std::isnan(data[3]));
    data.assign(2000, 1.0f);
    reduce();
    for (size_t i = 0; i < data.size(); ++i) ASSERT_NEAR(data[i], n, 0.05) << i;
  });
}

TEST_P(AsyncInt8, TheLinkCountsAQuarterOfTheBytes) {
  const auto [n, mode] = GetParam();
  const auto body = [n = n](AsyncCollective& collective) {
    constexpr size_t kCount = 12 * 1024;
    std::vector<float> data(kCount, 1.0f), residual(kCount);
    const auto carried = [&](DType dtype, float* rest) {
      const Ticket ticket = collective.all_reduce({data.data(), kCount, dtype, "a bucket", rest}, {});
      collective.wait(ticket, 20000);
      return collective.times(ticket).link_bytes;
    };
    carried(DType::fp32, nullptr);
    const int64_t others = n - 1, part = static_cast<int64_t>(kCount) / n, said = 64 * others;
    EXPECT_EQ(carried(DType::fp32, nullptr), 2 * others * part * 4 + said);
    EXPECT_EQ(carried(DType::bf16, nullptr), 2 * others * part * 2 + said);
    EXPECT_EQ(carried(DType::fp32, residual.data()), 2 * others * (part + part / 256 * 4) + said);
  };
  run_host(n, mode, body, "1GB/s,10us");
  run_host(n, mode, [](AsyncCollective& collective) {
    double x = 1;
    const Ticket ticket = collective.all_reduce({&x, 1, DType::fp64, "x"}, {});
    collective.wait(ticket, 20000);
    EXPECT_EQ(collective.times(ticket).link_bytes, 0);
  });
}

struct End {
  std::vector<float> values;
  std::vector<std::string> saved;  // before each step
};

/// Steps on a quadratic whose minimum differs by group and place.
End train(AsyncCollective& outer, OuterRule rule, DType wire, int steps, const std::string* from = nullptr,
          int first_step = 0) {
  std::vector<float> first(1000), second(77, 2.0f);
  train::ReplicaOptions options;
  options.co2 = {.rule = rule, .tau = 3, .check_every = 1};
  options.wire_dtype = wire;
  options.bucket_bytes = 4000;
  options.timeout_ms = 20000;
  options.threads = 1;
  train::Replica replica(
      options,
      {{.name = "first", .data = first.data(), .count = 1000}, {.name = "second", .data = second.data(), .count = 77}},
      outer);
  if (from != nullptr) replica.load(*from).or_throw();
  End end;
  for (int i = first_step; i < steps; ++i) {
    end.saved.push_back(replica.save());
    for (std::vector<float>* x : {&first, &second})
      for (size_t j = 0; j < x->size(); ++j)
        (*x)[j] -= 0.1f * ((*x)[j] - 0.3f * static_cast<float>(outer.rank()) - 0.01f * static_cast<float>(j % 13));
    replica.on_inner_step(0.1);
  }
  replica.flush();
  if (wire == DType::i8) {
    EXPECT_EQ(replica.stats().back().bytes, 1077 + 5 * 4);
  }
  first.insert(first.end(), second.begin(), second.end());
  end.values = first;
  return end;
}

TEST_P(AsyncInt8, TrainsWithEveryRuleToTheSameBitsOnAllGroups) {
  const auto [n, mode] = GetParam();
  for (const OuterRule rule : {OuterRule::co2, OuterRule::eager, OuterRule::streaming, OuterRule::local_sgd,
                               OuterRule::slow_mo, OuterRule::diloco})
    run_host(n, mode, [&](AsyncCollective& outer) {
      const std::vector<float> wanted = train(outer, rule, DType::fp32, 50).values;
      const std::vector<float> got = train(outer, rule, DType::i8, 50).values;
      double largest = 0;
      for (size_t i = 0; i < got.size(); ++i)
        largest = std::max(largest, std::abs(static_cast<double>(got[i]) - static_cast<double>(wanted[i])));
      EXPECT_GT(largest, 0) << kOuterRuleNames[static_cast<int>(rule)];
      EXPECT_LT(largest, 4e-3) << kOuterRuleNames[static_cast<int>(rule)];
      for (const double other : gathered(outer, hash_of(got))) EXPECT_EQ(other, hash_of(got));
    });
}

INSTANTIATE_TEST_SUITE_P(Ranks, AsyncInt8, testing::Combine(testing::Values(2, 3, 4), testing::ValuesIn(all_modes())),
                         mode_test_name);

TEST(AsyncInt8Replica, GoesOnFromEveryStepWithTheSameBits) {
  constexpr int kSteps = 11;
  std::vector<End> whole(2);
  run_host(2, Mode::threads, [&](AsyncCollective& outer) {
    whole[static_cast<size_t>(outer.rank())] = train(outer, OuterRule::co2, DType::i8, kSteps);
  });
  for (int stop = 0; stop < kSteps; ++stop)
    run_host(2, Mode::threads, [&](AsyncCollective& outer) {
      const End& mine = whole[static_cast<size_t>(outer.rank())];
      const std::string& from = mine.saved[static_cast<size_t>(stop)];
      ASSERT_EQ(train(outer, OuterRule::co2, DType::i8, kSteps, &from, stop).values, mine.values) << stop;
    });
}

TEST(AsyncInt8Fault, ResidualsThatOnlySomeRanksHaveAreDesync) {
  run_host(2, Mode::threads, [](AsyncCollective& collective) {
    std::vector<float> data(9, 1.0f), residual(9);
    Bucket bucket{data.data(), 9, DType::fp32, "round 1, bucket 0"};
    if (collective.rank() == 1) bucket.residual = residual.data();
    try {
      collective.wait(collective.all_reduce(bucket, {}), 20000);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("of 9 x i8"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("of 9 x fp32"), std::string::npos) << error.what();
    }
  });
}

/// A rank that is lost while parts of int8 are on their way: half of them in each direction take about 350 ms each.
class AsyncInt8Lost : public testing::TestWithParam<std::tuple<Fault, int>> {};

TEST_P(AsyncInt8Lost, WithinAnExchangeIsNamedToAllOthers) {
  if (!kHasProcesses) GTEST_SKIP() << "ranks are threads under this sanitizer";
  const auto [fault, after_ms] = GetParam();
  const int64_t deadline_ms = short_deadline_ms();
  constexpr int kCulprit = 1;
  const auto rank = [&, after_ms = after_ms](const std::unique_ptr<Bootstrap>& bootstrap,
                                             const std::function<void()>& happen) {
    RankOptions ranks;
    ranks.heap_bytes = size_t{2} << 20;
    ranks.timeout_ms = deadline_ms;
    HostCollectiveOptions options;
    options.runtime = runtime_options(Mode::processes, ranks);
    options.runtime.link = LinkOptions::parse("1MB/s,50us");
    options.meet_timeout_ms = 20000;
    const auto collective = open_host_collective(*bootstrap, options);
    std::vector<float> data(1 << 20, 1.0f), residual(1 << 20);
    const Ticket ticket =
        collective->all_reduce({data.data(), data.size(), DType::fp32, "round 4, bucket 0", residual.data()}, {});
    if (bootstrap->rank() == kCulprit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(after_ms));
      EXPECT_EQ(collective->poll(ticket), TicketState::pending);
      happen();
    }
    collective->wait(ticket, 2 * deadline_ms);
  };
  const auto survivors = run_with_fault(3, kCulprit, fault, rank);
  expect_told(survivors, kCulprit, allowed_seconds(fault, 2 * deadline_ms) + 1,
              {Errc::timeout, Errc::peer_lost, Errc::aborted}, fault_name(fault));
}

INSTANTIATE_TEST_SUITE_P(Within, AsyncInt8Lost,
                         testing::Combine(testing::Values(Fault::kill, Fault::exit, Fault::stop),
                                          testing::Values(60, 450)));

TEST(AsyncInt8Alone, RoundsNothing) {
  run_host(1, Mode::threads, [](AsyncCollective& collective) {
    std::vector<float> data = {1.0f, 0.001f, 1e-30f}, residual(3);
    const std::vector<float> before = data;
    collective.wait(collective.all_reduce({data.data(), 3, DType::fp32, "x", residual.data()}, {}), 20000);
    EXPECT_EQ(data, before);
    EXPECT_EQ(residual, std::vector<float>(3));
  });
}

TEST(AsyncInt8Fault, ResidualsBesideOtherTypesAreRefused) {
  run_host(1, Mode::threads, [](AsyncCollective& collective) {
    std::vector<float> data(8), residual(8);
    EXPECT_THROW((void)collective.all_reduce({data.data(), 4, DType::fp64, "x", residual.data()}, {}), InvalidArgument);
    EXPECT_THROW((void)collective.all_reduce({data.data(), 8, DType::i8, "x", residual.data()}, {}), InvalidArgument);
  });
}

}  // namespace
}  // namespace overlace::test
