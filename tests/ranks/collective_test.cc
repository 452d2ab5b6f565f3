// The reference engine: exact values, sums in rank order, every team size, over the emulated link too.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <tuple>
#include <vector>

#include "overlace/net_engine.h"
#include "src/base/half.h"
#include "src/runtime/state.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

const StreamRef kCpu = StreamRef::cpu();

/// Distinct by rank and index; sums of nine are exact in fp32.
float value(int rank, size_t i) { return static_cast<float>(rank * 65536 + static_cast<int>(i % 65000) + 1); }

std::vector<float> values(int rank, size_t count) {
  std::vector<float> data(count);
  for (size_t i = 0; i < count; ++i) data[i] = value(rank, i);
  return data;
}

/// Sizes around chunks, and odd ones, where bugs live.
const size_t kCounts[] = {0, 1, 7, 1000, 16384, 16385, 70001};

class CollectiveTest : public testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(CollectiveTest, GatherScatterReduceExchange) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    NetEngine* net = team.net();
    ASSERT_NE(net, nullptr);
    ASSERT_EQ(net->name(), "reference");
    const auto size = static_cast<size_t>(n);
    const auto rank = static_cast<size_t>(team.rank());
    for (const size_t count : kCounts) {
      const std::vector<float> mine = values(team.rank(), count), all = values(team.rank(), count * size);
      std::vector<float> gathered(count * size), scattered(count), reduced(count), exchanged(count * size);
      net->all_gather(mine.data(), gathered.data(), count, DType::fp32, kCpu);
      net->reduce_scatter(all.data(), scattered.data(), count, DType::fp32, kCpu);
      net->all_reduce(mine.data(), reduced.data(), count, DType::fp32, kCpu);
      net->all_to_all(all.data(), exchanged.data(), count, DType::fp32, kCpu);
      for (size_t i = 0; i < count; ++i) {
        float scatter_sum = 0, reduce_sum = 0;
        for (int r = 0; r < n; ++r) {
          ASSERT_EQ(gathered[static_cast<size_t>(r) * count + i], value(r, i)) << "gather " << r << " " << i;
          ASSERT_EQ(exchanged[static_cast<size_t>(r) * count + i], value(r, rank * count + i)) << r << " " << i;
          scatter_sum += value(r, rank * count + i);
          reduce_sum += value(r, i);
        }
        ASSERT_EQ(scattered[i], scatter_sum) << i;
        ASSERT_EQ(reduced[i], reduce_sum) << i;
      }
    }
  });
}

TEST_P(CollectiveTest, BroadcastAndReduceFromEveryRoot) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    NetEngine& net = *team.net();
    for (int root = 0; root < n; ++root)
      for (const size_t count : {size_t{0}, size_t{3}, size_t{20001}}) {
        std::vector<float> buffer = values(team.rank(), count), sum(count, -1);
        net.reduce(buffer.data(), sum.data(), count, DType::fp32, root, kCpu);
        net.broadcast(buffer.data(), count, DType::fp32, root, kCpu);
        for (size_t i = 0; i < count; ++i) {
          float want = 0;
          for (int r = 0; r < n; ++r) want += value(r, i);
          ASSERT_EQ(sum[i], team.rank() == root ? want : -1) << i;
          ASSERT_EQ(buffer[i], value(root, i)) << i;
        }
      }
  });
}

TEST_P(CollectiveTest, InPlace) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    const size_t count = 30001;
    std::vector<float> buffer = values(team.rank(), count);
    team.net()->all_reduce(buffer.data(), buffer.data(), count, DType::fp32, kCpu);
    for (size_t i = 0; i < count; ++i) {
      float want = 0;
      for (int r = 0; r < n; ++r) want += value(r, i);
      ASSERT_EQ(buffer[i], want);
    }
    std::vector<float> all(count * static_cast<size_t>(n));
    float* mine = all.data() + static_cast<size_t>(team.rank()) * count;
    for (size_t i = 0; i < count; ++i) mine[i] = value(team.rank(), i);
    team.net()->all_gather(mine, all.data(), count, DType::fp32, kCpu);
    for (int r = 0; r < n; ++r)
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(all[static_cast<size_t>(r) * count + i], value(r, i));
  });
}

/// fp32 sums of values whose order matters: the order is that of the ranks.
TEST_P(CollectiveTest, SumsAreTakenInRankOrderAndRoundedOnce) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    const size_t count = 5000;
    const auto entry = [](int rank, size_t i) {
      return 1.0f / static_cast<float>(rank * 31 + static_cast<int>(i % 97) + 1) * (rank % 2 == 0 ? 1e4f : -1.0f);
    };
    std::vector<float> mine(count), sum(count);
    std::vector<uint16_t> mine_16(count), sum_16(count);
    for (size_t i = 0; i < count; ++i) {
      mine[i] = entry(team.rank(), i);
      mine_16[i] = base::float_to_bf16(mine[i]);
    }
    team.net()->all_reduce(mine.data(), sum.data(), count, DType::fp32, kCpu);
    team.net()->all_reduce(mine_16.data(), sum_16.data(), count, DType::bf16, kCpu);
    for (size_t i = 0; i < count; ++i) {
      float want = entry(0, i), want_16 = base::bf16_to_float(base::float_to_bf16(entry(0, i)));
      for (int r = 1; r < n; ++r) {
        want += entry(r, i);
        want_16 += base::bf16_to_float(base::float_to_bf16(entry(r, i)));
      }
      ASSERT_EQ(sum[i], want) << i;
      ASSERT_EQ(sum_16[i], base::float_to_bf16(want_16)) << i;
    }
  });
}

TEST_P(CollectiveTest, IntegersDoublesAndRefusedTypes) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    NetEngine& net = *team.net();
    const int64_t big = (int64_t{1} << 40) + team.rank();
    const int32_t small = -5 - team.rank();
    const double real = 1.0 + team.rank() * 1e-12;
    int64_t big_sum = 0;
    int32_t small_sum = 0;
    double real_sum = 0, real_want = 1.0;
    net.all_reduce(&big, &big_sum, 1, DType::i64, kCpu);
    net.all_reduce(&small, &small_sum, 1, DType::i32, kCpu);
    net.all_reduce(&real, &real_sum, 1, DType::fp64, kCpu);
    for (int r = 1; r < n; ++r) real_want += 1.0 + r * 1e-12;
    EXPECT_EQ(big_sum, n * (int64_t{1} << 40) + n * (n - 1) / 2);
    EXPECT_EQ(small_sum, -5 * n - n * (n - 1) / 2);
    EXPECT_EQ(real_sum, real_want);
    EXPECT_THROW(net.all_reduce(&small, &small_sum, 4, DType::e4m3, kCpu), Unsupported);
    EXPECT_THROW(net.broadcast(&small_sum, 1, DType::i32, n, kCpu), InvalidArgument);
    EXPECT_THROW(net.all_reduce(&small, &small_sum, 1, DType::i32, StreamRef::cuda(nullptr)), InvalidArgument);
  });
}

TEST_P(CollectiveTest, GroupsOfSendsAndReceives) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    NetEngine& net = *team.net();
    std::vector<std::vector<float>> out, in;
    const auto count_for = [](int from, int to) { return static_cast<size_t>((from * 7 + to * 3) % 5) * 9001; };
    for (int peer = 0; peer < n; ++peer) {
      out.push_back(values(team.rank() * 10 + peer, count_for(team.rank(), peer)));
      in.emplace_back(count_for(peer, team.rank()));
    }
    net.group_begin();
    for (size_t peer = 0; peer < out.size(); ++peer) {
      // Two messages each way, in order.
      const size_t half = out[peer].size() / 2, half_in = in[peer].size() / 2;
      net.send(out[peer].data(), half * 4, static_cast<int>(peer), kCpu);
      net.send(out[peer].data() + half, (out[peer].size() - half) * 4, static_cast<int>(peer), kCpu);
      net.recv(in[peer].data(), half_in * 4, static_cast<int>(peer), kCpu);
      net.recv(in[peer].data() + half_in, (in[peer].size() - half_in) * 4, static_cast<int>(peer), kCpu);
    }
    net.group_end();
    for (int peer = 0; peer < n; ++peer)
      for (size_t i = 0; i < in[static_cast<size_t>(peer)].size(); ++i)
        ASSERT_EQ(in[static_cast<size_t>(peer)][i], value(peer * 10 + team.rank(), i));
    EXPECT_THROW(net.group_end(), InvalidArgument);
  });
}

TEST_P(CollectiveTest, AnErrorInsideAGroupEndsIt) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    NetEngine& net = *runtime.world().net();
    const int rank = runtime.world().rank();
    float lost = -1, out = value(rank, 0), in = 0;
    net.group_begin();
    net.group_begin();
    net.recv(&lost, sizeof lost, (rank + 1) % n, kCpu);
    EXPECT_THROW(net.send(&out, sizeof out, n, kCpu), InvalidArgument);
    EXPECT_THROW(net.group_end(), InvalidArgument);
    net.group_begin();
    net.send(&out, sizeof out, (rank + 1) % n, kCpu);
    net.recv(&in, sizeof in, (rank + n - 1) % n, kCpu);
    net.group_end();
    EXPECT_EQ(in, value((rank + n - 1) % n, 0));
    EXPECT_EQ(lost, -1);
  });
}

TEST_P(CollectiveTest, SubTeamsReduceSideBySide) {
  const auto [n, mode] = GetParam();
  if (n < 4) GTEST_SKIP() << "needs two teams of two";
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& world = runtime.world();
    std::vector<int> low, high;
    for (int r = 0; r < n; ++r) (r < n / 2 ? low : high).push_back(r);
    Team first = world.sub(low, {.name = "low"}), second = world.sub(high, {.name = "high"});
    Team& mine = first ? first : second;
    const std::vector<int>& members = first ? low : high;
    const size_t count = 40001;
    std::vector<float> in = values(world.rank(), count), out(count), whole(count);
    mine.net()->all_reduce(in.data(), out.data(), count, DType::fp32, kCpu);
    world.net()->all_reduce(in.data(), whole.data(), count, DType::fp32, kCpu);
    for (size_t i = 0; i < count; ++i) {
      float want = 0, want_whole = 0;
      for (const int r : members) want += value(r, i);
      for (int r = 0; r < n; ++r) want_whole += value(r, i);
      ASSERT_EQ(out[i], want) << i;
      ASSERT_EQ(whole[i], want_whole) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectiveTest,
                         testing::Combine(testing::Values(1, 2, 3, 4, 9), testing::ValuesIn(all_modes())),
                         mode_test_name);

/// What passes the link takes as long as its rate says, and is reported as such.
TEST(Link, PacesAndReportsTransfers) {
  RankOptions options;
  options.link = LinkOptions::parse("100MB/s,200us");
  run_ranks(
      2, Mode::threads,
      [](Runtime& runtime) {
        Team& team = runtime.world();
        struct Span {
          int peer;
          int64_t begin, end;
          size_t bytes;
        };
        std::vector<Span> spans;
        runtime::set_transfer_sink(runtime, [&](int peer, int64_t begin, int64_t end, size_t bytes) {
          if (bytes > 1000) spans.push_back({peer, begin, end, bytes});
        });
        const ChannelPod& channel = team.channel(StreamRef::cpu()).pod();
        const uint32_t id = team.channel(StreamRef::cpu()).ids(1, Domain::cpu, "link.signal").first;
        const SymBuffer inbox = runtime.heap().alloc(1 << 20, 256, "inbox");
        team.barrier();
        const int peer = 1 - team.rank();
        std::vector<char> source(1 << 20, static_cast<char>(team.rank() + 1));
        const auto begin = std::chrono::steady_clock::now();
        for (size_t part = 0; part < 4; ++part)
          put_signal(channel, peer, inbox.offset + part * (256 << 10), source.data(), 256 << 10, id);
        const double issue_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        ASSERT_EQ(wait_ge(channel, peer, id, 4), Errc::ok);
        consume(channel, peer, id, 4);
        ASSERT_EQ(flush(channel), Errc::ok);
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        // 1 MiB at 100 MB/s: never faster; how much slower depends on the machine.
        EXPECT_GE(seconds, 0.0104);
        EXPECT_LT(issue_s, seconds) << "puts return before the link has carried them";
        const auto* got = static_cast<const char*>(team.local_ptr(inbox));
        for (size_t i = 0; i < source.size(); ++i) ASSERT_EQ(got[i], static_cast<char>(peer + 1));
        runtime::set_transfer_sink(runtime, {});
        ASSERT_EQ(spans.size(), 4u);
        for (size_t i = 0; i < spans.size(); ++i) {
          EXPECT_EQ(spans[i].peer, peer);
          EXPECT_EQ(spans[i].bytes, size_t{256} << 10);
          EXPECT_NEAR(static_cast<double>(spans[i].end - spans[i].begin), 2621440, 10);
          if (i == 0) continue;
          EXPECT_GE(spans[i].begin, spans[i - 1].end) << "the link carries one thing at a time";
        }
        std::vector<char> read(100 << 10);
        const auto get_begin = std::chrono::steady_clock::now();
        ASSERT_EQ(get(channel, peer, inbox.offset, read.data(), read.size()), Errc::ok);
        EXPECT_GE(std::chrono::duration<double>(std::chrono::steady_clock::now() - get_begin).count(), 0.0014);
        for (const char c : read) ASSERT_EQ(c, static_cast<char>(team.rank() + 1));
        team.barrier();
      },
      options);
}

TEST(Link, WhatFlushWaitedForHasBeenReported) {
  RankOptions options;
  options.link = LinkOptions::parse("100MB/s,20us");
  run_ranks(
      2, Mode::threads,
      [](Runtime& runtime) {
        Team& team = runtime.world();
        std::atomic<size_t> reported{0};
        runtime::set_transfer_sink(runtime, [&](int, int64_t, int64_t, size_t bytes) {
          if (bytes != 4096) return;
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
          reported += bytes;
        });
        const ChannelPod& channel = team.channel(StreamRef::cpu()).pod();
        const uint32_t id = team.channel(StreamRef::cpu()).ids(1, Domain::cpu, "link.bell").first;
        const SymBuffer inbox = runtime.heap().alloc(4096, 256, "inbox");
        team.barrier();
        if (team.rank() == 0) {
          const std::vector<char> source(4096, 'a');
          put(channel, 1, inbox.offset, source.data(), source.size());
          ASSERT_EQ(flush(channel), Errc::ok);
          EXPECT_EQ(reported, source.size());
          ASSERT_EQ(wait_ge(channel, 1, id, 5), Errc::ok);
          consume(channel, 1, id, 5);
        } else {
          for (int i = 0; i < 5; ++i) {  // each wakes rank 0, which looks then whether its put has left
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            signal_add(channel, 0, id);
          }
        }
        runtime::set_transfer_sink(runtime, {});
        team.barrier();
      },
      options);
}

TEST(Link, CollectivesPassIt) {
  RankOptions options;
  options.link = LinkOptions::parse("200MB/s,20us");
  run_ranks(
      3, Mode::threads,
      [](Runtime& runtime) {
        Team& team = runtime.world();
        const size_t count = 100000;
        const std::vector<float> mine = values(team.rank(), count);
        std::vector<float> all(3 * count);
        const auto begin = std::chrono::steady_clock::now();
        team.net()->all_gather(mine.data(), all.data(), count, DType::fp32, kCpu);
        EXPECT_GE(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 0.002);
        for (int r = 0; r < 3; ++r)
          for (size_t i = 0; i < count; ++i) ASSERT_EQ(all[static_cast<size_t>(r) * count + i], value(r, i));
      },
      options);
}

}  // namespace
}  // namespace overlace::test
