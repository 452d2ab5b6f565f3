// CO2 with its state on a GPU that is played: beside a run on the host, bit by bit.
#include <atomic>
#include <cmath>
#include <limits>

#include "src/runtime/hash.h"
#include "src/train/co2/cuda/state.h"
#include "src/train/co2/replica.h"
#include "tests/ranks/nccl/device.h"

namespace overlace::test::nccl {
namespace {

using train::Replica;
using train::ReplicaOptions;

/// Three tensors of different dtypes, and descent towards what differs by rank.
struct Model {
  explicit Model(int group) : rank(group) {
    for (size_t i = 0; i < wide.size(); ++i) wide[i] = 0.01f * static_cast<float>(i % 17) + 1;
  }
  std::vector<train::Parameter> parameters() {
    return {{.name = "wide", .data = wide.data(), .count = static_cast<int64_t>(wide.size())},
            {.name = "none", .data = nullptr, .count = 0},
            {.name = "half", .data = half.data(), .dtype = DType::bf16, .count = static_cast<int64_t>(half.size())},
            {.name = "last", .data = last.data(), .count = static_cast<int64_t>(last.size())}};
  }
  void step() {
    for (std::vector<float>* const values : {&wide, &last})
      for (size_t i = 0; i < values->size(); ++i)
        (*values)[i] -= 0.1f * ((*values)[i] - 0.2f * static_cast<float>(rank) - 0.001f * static_cast<float>(i));
    for (uint16_t& value : half) value = static_cast<uint16_t>(value + rank + 1);
  }
  std::vector<float> flat() const {
    std::vector<float> all = wide;
    all.insert(all.end(), half.begin(), half.end());
    all.insert(all.end(), last.begin(), last.end());
    return all;
  }
  int rank;
  std::vector<float> wide = std::vector<float>(700), last = std::vector<float>(3, 0.5f);
  std::vector<uint16_t> half = std::vector<uint16_t>(90, 0x3f80);
};

ReplicaOptions small(const Co2Options& co2, DType wire) {
  ReplicaOptions options;
  options.co2 = co2;
  options.wire_dtype = wire;
  options.bucket_bytes = 4000;
  options.timeout_ms = 20000;
  options.threads = 1;
  return options;
}

struct End {
  std::vector<float> values, anchor;
  std::deque<train::RoundStats> stats;
};

/// `spoils`: the step after which group 1 has a value that is no number.
void train_on_host(AsyncCollective& outer, const ReplicaOptions& options, int steps, int spoils, End& end) {
  Model model(outer.rank());
  Replica replica(options, model.parameters(), outer);
  for (int i = 0; i < steps; ++i) {
    model.step();
    if (i == spoils && outer.rank() == 1) model.wide[5] = std::numeric_limits<float>::infinity();
    replica.on_inner_step(0.1);
  }
  replica.flush();
  end = {model.flat(), {replica.anchor().begin(), replica.anchor().end()}, replica.stats()};
}

/// `saves`: the step after which all is saved, and loaded into another one.
void train_on_device(AsyncCollective& outer, cudaStream_t stream, ReplicaOptions options, int steps, int spoils,
                     int saves, End& end) {
  options.device = 0;
  options.stream = stream;
  options.open_state = train::make_cuda_state;
  Model model(outer.rank());
  auto replica = std::make_unique<Replica>(options, model.parameters(), outer);
  for (int i = 0; i < steps; ++i) {
    cuda::enqueue(stream, [&, i] {
      model.step();
      if (i == spoils && outer.rank() == 1) model.wide[5] = std::numeric_limits<float>::infinity();
      return true;
    });
    replica->on_inner_step(0.1);
    if (i != saves) continue;
    const std::string saved = replica->save();
    const std::vector<float> before = model.flat();
    Model fresh(outer.rank());
    model.wide = fresh.wide, model.half = fresh.half, model.last = fresh.last;
    replica.reset();
    replica = std::make_unique<Replica>(options, model.parameters(), outer);
    replica->load(saved).or_throw();
    EXPECT_EQ(model.flat(), before);
  }
  replica->flush();
  EXPECT_TRUE(ends(stream));
  end.values = model.flat();
  end.anchor.resize(static_cast<size_t>(replica->elements()));
  replica->copy_anchor(end.anchor);
  end.stats = replica->stats();
}

void expect_same(const ReplicaOptions& options, int n, int steps, int spoils = -1, int saves = -1) {
  std::vector<End> host(static_cast<size_t>(n)), device(static_cast<size_t>(n));
  run_bootstraps(n, Mode::threads, [&](Bootstrap& bootstrap) {
    RankOptions ranks;
    ranks.heap_bytes = size_t{2} << 20;
    HostCollectiveOptions transport;
    transport.runtime = runtime_options(Mode::threads, ranks);
    const auto outer = open_host_collective(bootstrap, transport);
    train_on_host(*outer, options, steps, spoils, host[static_cast<size_t>(outer->rank())]);
  });
  run_on_devices(n, {}, [&](AsyncCollective& outer, cudaStream_t stream) {
    train_on_device(outer, stream, options, steps, spoils, saves, device[static_cast<size_t>(outer.rank())]);
  });
  for (size_t r = 0; r < host.size(); ++r) {
    EXPECT_EQ(device[r].values, host[r].values) << r;
    EXPECT_EQ(device[r].anchor, host[r].anchor) << r;
    if (saves >= 0) continue;  // rounds before it are another replica's
    ASSERT_EQ(device[r].stats.size(), host[r].stats.size()) << r;
    for (size_t i = 0; i < host[r].stats.size(); ++i) {
      const train::RoundStats &got = device[r].stats[i], &wanted = host[r].stats[i];
      EXPECT_EQ(got.round, wanted.round);
      EXPECT_EQ(got.steps, wanted.steps);
      EXPECT_EQ(got.bytes, wanted.bytes);
      EXPECT_EQ(got.is_dropped, wanted.is_dropped);
      EXPECT_DOUBLE_EQ(got.lambda, wanted.lambda);
      EXPECT_DOUBLE_EQ(got.clipped, wanted.clipped);
      EXPECT_DOUBLE_EQ(got.increment_norm, wanted.increment_norm);
      if (!wanted.is_dropped) {
        EXPECT_DOUBLE_EQ(got.mean_norm, wanted.mean_norm);
      }
      EXPECT_DOUBLE_EQ(got.momentum_norm, wanted.momentum_norm);
      EXPECT_EQ(got.last_rank < 0, wanted.last_rank < 0);
    }
  }
}

TEST(Co2OnDevice, EveryRuleHasTheBitsOfTheHost) {
  for (const OuterRule rule : {OuterRule::co2, OuterRule::eager, OuterRule::streaming, OuterRule::local_sgd,
                               OuterRule::slow_mo, OuterRule::diloco}) {
    SCOPED_TRACE(kOuterRuleNames[static_cast<int>(rule)]);
    Co2Options co2{.rule = rule, .tau = 4, .check_every = 2};
    if (rule == OuterRule::streaming) co2.fragments = 2;
    expect_same(small(co2, DType::fp32), 2, 4 * 5 + 1);
  }
}

TEST(Co2OnDevice, EveryWireAndPhaseHasTheBitsOfTheHost) {
  for (const DType wire : {DType::bf16, DType::fp32}) {
    SCOPED_TRACE(dtype_name(wire));
    Co2Options co2{.tau = 3, .outer_momentum = 0.4, .kappa = 1, .gap = StalenessGap::adaptive};
    expect_same(small(co2, wire), 3, 3 * 5);
    co2 = {.tau = 3, .warmup_sync_steps = 2, .total_steps = 20};
    ReplicaOptions options = small(co2, wire);
    options.is_boundary_whole = wire == DType::bf16;
    options.is_deadline_auto = wire == DType::fp32;
    expect_same(options, 2, 20);
  }
}

TEST(Co2OnDevice, ABadRoundIsDroppedAndTheRestIsAsOnTheHost) {
  for (const OuterRule rule : {OuterRule::co2, OuterRule::streaming, OuterRule::diloco}) {
    SCOPED_TRACE(kOuterRuleNames[static_cast<int>(rule)]);
    Co2Options co2{.rule = rule, .tau = 4};
    if (rule == OuterRule::streaming) co2.fragments = 2;
    expect_same(small(co2, DType::fp32), 2, 4 * 6, 9);
  }
}

TEST(Co2OnDevice, ASaveInsideARoundGoesOnWithTheSameBits) {
  for (const int saves : {1, 3, 6})
    expect_same(small({.tau = 4, .outer_momentum = 0.3}, DType::bf16), 2, 4 * 4, -1, saves);
}

TEST(Co2OnDevice, ASaveFitsARunOnTheHost) {
  const ReplicaOptions options = small({.tau = 3, .outer_momentum = 0.3}, DType::bf16);
  std::string saved;
  std::vector<float> values, anchor(793);
  run_on_devices(1, {}, [&](AsyncCollective& outer, cudaStream_t stream) {
    ReplicaOptions here = options;
    here.device = 0;
    here.stream = stream;
    here.open_state = train::make_cuda_state;
    Model model(0);
    Replica replica(here, model.parameters(), outer);
    for (int i = 0; i < 8; ++i) {
      cuda::enqueue(stream, [&] { return model.step(), true; });
      replica.on_inner_step(0.1);
    }
    saved = replica.save();
    values = model.flat();
    replica.copy_anchor(anchor);
    EXPECT_EQ(replica.load("what is no checkpoint").code(), Errc::corrupt);
    EXPECT_EQ(model.flat(), values);
  });
  run_bootstraps(1, Mode::threads, [&](Bootstrap& bootstrap) {
    HostCollectiveOptions transport;
    transport.runtime = runtime_options(Mode::threads, {});
    const auto outer = open_host_collective(bootstrap, transport);
    Model model(0);
    Replica replica(options, model.parameters(), *outer);
    replica.load(saved).or_throw();
    EXPECT_EQ(model.flat(), values);
    EXPECT_EQ(std::vector<float>(replica.anchor().begin(), replica.anchor().end()), anchor);
    EXPECT_EQ(replica.save(), saved);
  });
}

TEST(Co2OnDevice, ShardsAndUnequalGroupsAreAsOnTheHost) {
  ReplicaOptions options = small({.tau = 4, .samples = 8}, DType::fp32);
  expect_same(options, 2, 4 * 4);
  options = small({.tau = 4}, DType::fp32);
  options.shard_degree = 2;
  options.reduce_in_group = [](std::span<double> sums) {  // the other shard has the same
    for (double& sum : sums) sum *= 2;
  };
  expect_same(options, 2, 4 * 4);
}

TEST(Co2OnDevice, GroupsOutOfStepAreToldARoundLaterAndNothingOfItIsTakenIn) {
  run_on_devices(2, {.leaves_errors = true}, [&](AsyncCollective& outer, cudaStream_t stream) {
    ReplicaOptions options = small({.tau = 2, .check_every = 1}, DType::fp32);
    options.device = 0;
    options.stream = stream;
    options.open_state = train::make_cuda_state;
    Model model(outer.rank());
    Replica replica(options, model.parameters(), outer);
    const auto round = [&] {
      for (int i = 0; i < 2; ++i) {
        cuda::enqueue(stream, [&] { return model.step(), true; });
        replica.on_inner_step(0.1);
      }
    };
    round();
    std::vector<float> before(static_cast<size_t>(replica.elements())), after(before);
    replica.copy_anchor(before);
    const std::string saved = replica.save();
    if (outer.rank() == 1) {  // another anchor, by another run's checkpoint would be refused: a bit of the own one
      std::string other = saved;
      const float value = before[3];
      const size_t at = other.find(std::string(reinterpret_cast<const char*>(&value), sizeof value));
      ASSERT_NE(at, std::string::npos);
      other[at] = static_cast<char>(other[at] ^ 1);
      const uint64_t hash = runtime::hash_text(std::string_view(other).substr(0, other.size() - sizeof hash));
      std::memcpy(other.data() + other.size() - sizeof hash, &hash, sizeof hash);
      replica.load(other).or_throw();
    } else {
      replica.load(saved).or_throw();
    }
    round();  // sends hashes that differ
    replica.copy_anchor(before);
    round();  // is told on the device, and takes nothing in
    replica.copy_anchor(after);
    EXPECT_EQ(after, before);
    const std::string text = thrown(Errc::desync, round);
    expect_text(text, {"anchor (", "the round was dropped on all ranks"});
  });
}

TEST(Co2OnDevice, ALostGroupIsAnErrorAndTheAnchorIsWhole) {
  run_on_devices(2, {.timeout_ms = 1500, .leaves_errors = true}, [&](AsyncCollective& outer, cudaStream_t stream) {
    ReplicaOptions options = small({.tau = 2}, DType::fp32);
    options.device = 0;
    options.stream = stream;
    options.open_state = train::make_cuda_state;
    Model model(outer.rank());
    auto replica = std::make_unique<Replica>(options, model.parameters(), outer);
    const auto round = [&] {
      for (int i = 0; i < 2; ++i) {
        cuda::enqueue(stream, [&] { return model.step(), true; });
        replica->on_inner_step(0.1);
      }
    };
    round();
    std::vector<float> before(static_cast<size_t>(replica->elements())), after(before);
    replica->copy_anchor(before);
    if (outer.rank() == 1) {
      outer.abort(Errc::aborted, "rank 1 had enough");
      return;
    }
    std::string text;
    for (int i = 0; i < 4 && text.empty(); ++i) try {
        round();
      } catch (const Error& error) {
        text = error.what();
      }
    expect_text(text, {"rank 1 had enough"});
    EXPECT_TRUE(ends(stream));
    replica->copy_anchor(after);
    EXPECT_EQ(after, before);
  });
}

/// A rule that waits at once: no ticket is the replica's own any more, but the stream waits for all of them.
TEST(Co2OnDevice, OneThatIsDestroyedWhileItsStreamWaitsEndsThatOnAllRanks) {
  std::atomic<bool> is_over = false;
  run_on_devices(2, {.leaves_errors = true}, [&](AsyncCollective& outer, cudaStream_t stream) {
    ReplicaOptions options = small({.rule = OuterRule::local_sgd, .tau = 1}, DType::fp32);
    options.device = 0;
    options.stream = stream;
    options.open_state = train::make_cuda_state;
    Model model(outer.rank());
    auto replica = std::make_unique<Replica>(options, model.parameters(), outer);
    if (outer.rank() == 0) {
      replica->on_inner_step(0.1);
      const int64_t begin_ns = now_ns();
      replica.reset();
      EXPECT_LT(now_ns() - begin_ns, 10 * kSecondNs) << "the deadline is 20 s";
      EXPECT_TRUE(ends(stream));
      is_over = true;
      return;
    }
    EXPECT_TRUE(holds_within(kSoonNs, [&] { return is_over.load(); }));
    const std::string text = thrown(Errc::aborted, [&] {
      for (int i = 0; i < 4; ++i) replica->on_inner_step(0.1);
    });
    expect_text(text, {"ended training with increments on their way"});
  });
}

TEST(Co2OnDevice, BadValuesAreTheErrorWhereTheirEndOfAnotherRankComesFirst) {
  run_on_devices(1, {.leaves_errors = true}, [&](AsyncCollective& outer, cudaStream_t stream) {
    ReplicaOptions options = small({.tau = 1}, DType::fp32);
    options.device = 0;
    options.stream = stream;
    options.open_state = train::make_cuda_state;
    Model model(0);
    Replica replica(options, model.parameters(), outer);
    for (int i = 0; i < 4; ++i) {  // the fourth boundary judges the third round, and nobody has looked
      cuda::enqueue(stream, [&] { return model.wide[5] = std::numeric_limits<float>::infinity(), true; });
      replica.on_inner_step(0.1);
    }
    EXPECT_TRUE(ends(stream));
    outer.abort(Errc::aborted, "another rank has thrown, and left");
    expect_text(thrown(Errc::non_finite, [&] { replica.on_inner_step(0.1); }), {"3 rounds in a row"});
  });
}

}  // namespace
}  // namespace overlace::test::nccl
